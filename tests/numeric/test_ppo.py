"""PPO's experience, recomputed by hand from its parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.rewards.learned.bt import ScoreScale
from rlhf_lab.training.run import Run


def built(policy: Path, reward: Path, directory: Path, *overrides: str):
    needs = {"policy": str(policy), "reward": str(reward)}
    size = (
        "algorithm.prompts_per_iteration=8",
        "algorithm.batch_size=8",
        "algorithm.iterations=2",
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


def test_token_rewards_advantages_and_returns(policy, reward_model, tmp_path):
    """Rewards are −β(log π − log π_ref) per token, plus the score at the last; GAE and returns row by row."""
    more = ("algorithm.beta=0.7", "algorithm.lam=0.9", "algorithm.value_lam=1.0", "algorithm.whiten_advantages=false")
    algorithm = built(policy, reward_model, tmp_path, *more)
    with torch.no_grad():
        for parameter in algorithm.model.parameters():  # a policy away from its reference has a KL to pay for
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    algorithm._check_start = lambda *_: 0.0
    algorithm.collect(0)
    found = algorithm.experience
    texts = [algorithm.encoder.text(response) for _, response in found.rows]
    scores = algorithm.shaper(
        algorithm.evaluator.reward(algorithm.run.corpus.episodes(_prompts(algorithm), texts)).total_N,
        found.sampled_lengths,
        [response[-1] == algorithm.encoder.eos_id for _, response in found.rows],
    )
    for i, row in enumerate(found.rows):
        batch = TokenBatch.from_rows([row])
        with torch.no_grad():
            logp, ref = (token_logps(m, batch).logps_N.double() for m in (algorithm.model, algorithm.reference))
            value = algorithm.critic.values(batch).double()
        reward = -0.7 * (logp - ref)
        reward[-1] += scores[i]
        following = torch.cat([value[1:], torch.zeros(1)])
        delta = reward + following - value
        advantage = torch.stack([(delta[t:] * 0.9 ** torch.arange(len(delta) - t)).sum() for t in range(len(delta))])
        mine = found.index([i])
        assert torch.allclose(found.tokens["advantage"][mine].double(), advantage, atol=1e-4)
        returns = reward.flip(0).cumsum(0).flip(0)
        assert torch.allclose(found.tokens["return"][mine].double(), returns, atol=1e-4)
    assert float((found.tokens["old"] - found.tokens["ref"]).abs().max()) > 0.01


def _prompts(algorithm) -> list[str]:
    """Prompts of the experience's rows, by their token ids."""
    by_ids = {}
    for text in algorithm.run.corpus.prompts("train"):
        by_ids[tuple(algorithm.encoder.prompt(text, algorithm.run.config.rollout.max_prompt_tokens))] = text
    return [by_ids[tuple(prompt)] for prompt, _ in algorithm.experience.rows]


def test_whitening_is_over_all_tokens(policy, reward_model, tmp_path):
    algorithm = built(policy, reward_model, tmp_path)
    algorithm.collect(0)
    advantage_N = algorithm.experience.tokens["advantage"]
    assert abs(float(advantage_N.mean())) < 1e-5
    assert float(advantage_N.std(unbiased=False)) == pytest.approx(1, abs=1e-4)


def test_dropout_is_off(policy, reward_model, tmp_path):
    algorithm = built(policy, reward_model, tmp_path)
    modules = [*algorithm.model.modules(), *algorithm.critic.modules()]
    assert all(m.p == 0 for m in modules if isinstance(m, torch.nn.Dropout))
    assert not algorithm.model.training
