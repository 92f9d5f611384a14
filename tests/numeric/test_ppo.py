"""PPO's experience, recomputed by hand from its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.rewards.learned.bt import ScoreScale
from rlhf_lab.training.run import Run


def built(policy: Path, reward: Path, directory: Path, *overrides: str):
    needs = {"policy": str(policy), "reward": str(reward)}
    size = (
        *("algorithm.prompts_per_iteration=8", "algorithm.batch_size=8", "algorithm.iterations=2"),
        "algorithm.critic_warmup=1",
    )
    roles = (f"needs.{role}={path}" for role, path in needs.items())
    config = planned("ppo", *SMALL_WORLD, *ONE_LAYER, *size, *roles, *overrides).config
    return registry.build("algorithm", config.algorithm, Run(directory, config, needs))


def test_the_critic_starts_as_the_standardised_reward_model(policy, reward_model, tmp_path):
    algorithm = built(policy, reward_model, tmp_path)
    scale = ScoreScale.read(reward_model)
    assert scale.sd != 1
    rows = [algorithm.encoder.row(p.prompt, p.chosen, 64) for p in algorithm.run.corpus.test[:6]]
    # the state after the last token is what the reward model scores: one more token asks for its value
    batch = TokenBatch.from_rows([(prompt, [*response, 0]) for prompt, response in rows])
    with torch.no_grad():
        values_N = algorithm.critic.values(batch)
    last = torch.tensor([len(response) + 1 for _, response in rows]).cumsum(0) - 1
    texts = [p.chosen for p in algorithm.run.corpus.test[:6]]
    expected = algorithm.evaluator.reward(
        algorithm.run.corpus.episodes([p.prompt for p in algorithm.run.corpus.test[:6]], texts)
    ).total_N
    assert np.allclose(values_N[last].numpy(), expected, atol=1e-4)


def test_dropout_is_off(policy, reward_model, tmp_path):
    algorithm = built(policy, reward_model, tmp_path)
    modules = [*algorithm.model.modules(), *algorithm.critic.modules()]
    assert all(m.p == 0 for m in modules if isinstance(m, torch.nn.Dropout))
    assert not algorithm.model.training
