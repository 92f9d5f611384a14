"""Batches and penalties of an iteration of the GRPO family, recomputed by hand from their parts."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, disturb, planned

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.losses.policy import k1, k3
from rlhf_lab.sampling.experience import Experience, episodes_of
from rlhf_lab.training.loop import LossOutput
from rlhf_lab.training.run import Run

SIZE = (
    *("reward=length", "needs.reward=null", "algorithm.prompts_per_iteration=4", "algorithm.group_size=4"),
    *("algorithm.batch_size=8", "algorithm.iterations=2", "algorithm.length_bucket_batches=1"),
)


@pytest.fixture
def built(policy, tmp_path):
    """Overrides → GRPO on the length of responses after its first rollout, the policy moved from its reference."""

    def build(*overrides: str):
        config = planned("grpo", *SMALL_WORLD, *ONE_LAYER, *SIZE, f"needs.policy={policy}", *overrides).config
        algorithm = registry.build("algorithm", config.algorithm, Run(tmp_path, config, {"policy": str(policy)}))
        disturb(algorithm.model)
        algorithm._check_start = lambda *_: 0.0  # it would refuse a policy that starts away from its reference
        algorithm.groups = []
        draw = algorithm.rollouts.draw

        def remember(model, iteration):
            algorithm.groups, metrics = draw(model, iteration)
            return algorithm.groups, metrics

        algorithm.rollouts.draw = remember
        algorithm.batch = algorithm.collect(0)
        return algorithm

    return build


def scores(algorithm) -> torch.Tensor:
    """(B, G)."""
    return torch.tensor([group.scores for group in algorithm.groups], dtype=torch.float64)


def of_replies(algorithm, name: str) -> torch.Tensor:
    """A quantity that is equal for all tokens of a response, (B, G)."""
    parts = algorithm.experience.tokens[name].split(algorithm.experience.sampled_lengths)
    assert all((part == part[0]).all() for part in parts)
    return torch.stack([part[0] for part in parts]).view(4, 4).double()


def kl_of_replies(algorithm) -> torch.Tensor:
    """Σ_t log π − log π_ref of each sampled response, (B, G)."""
    tokens = algorithm.experience.tokens
    parts = (tokens["old"] - tokens["ref"]).split(algorithm.experience.sampled_lengths)
    return torch.stack([part.sum() for part in parts]).view(4, 4).double()


def test_a_penalty_in_the_reward_is_subtracted_from_the_score_before_replies_are_compared(built):
    """Dr. GRPO with r = score − β·Σ(log π − log π_ref): A = r − mean of the group's r."""
    algorithm = built("algorithm.advantage=dr_grpo", "algorithm.kl_in=reward", "algorithm.beta=0.7")
    kl = kl_of_replies(algorithm)
    assert float((0.7 * (kl - kl.mean(1, keepdim=True))).abs().max()) > 0.1  # the penalty decides something
    reward = scores(algorithm) - 0.7 * kl
    expected = reward - reward.mean(1, keepdim=True)
    assert torch.allclose(of_replies(algorithm, "advantage"), expected, atol=1e-4)


def test_remax_compares_with_the_greedy_reply(built):
    """A = score − score of the one response that greedy decoding gives to the prompt."""
    algorithm = built("algorithm=remax", "algorithm.beta=0", "algorithm.kl_in=reward")
    sampler, encoder = algorithm.rollouts.collector.sampler, algorithm.encoder
    greedy = sampler.sample(
        algorithm.model, [group.episodes[0].prompt_ids for group in algorithm.groups], 1, 99, temperature=0.0
    )
    responses = [response for (response,) in greedy.responses_BG]
    episodes = algorithm.run.corpus.episodes(
        [g.task.prompt for g in algorithm.groups], [encoder.text(r) for r in responses]
    )
    rewards = algorithm.evaluator.reward(episodes).total_N
    baseline = algorithm.shaper(rewards, [len(r) for r in responses], [end for (end,) in greedy.finished_BG])
    expected = scores(algorithm) - torch.tensor(baseline)[:, None]
    assert torch.allclose(of_replies(algorithm, "advantage"), expected, atol=1e-4)


def test_unscored_responses_leave_no_epoch_incomplete(built):
    """10 of 16 responses have a score: batches of 3, 3, 3 and 1 in each of 4 epochs."""
    algorithm = built("algorithm.epochs=4", "algorithm.batch_size=4")
    algorithm.experience = Experience.of(episodes_of(algorithm.groups)[:10])
    algorithm._plan_updates()
    assert sorted(map(len, algorithm.plan)) == [1] * 4 + [3] * 12
    assert set(Counter(chain.from_iterable(algorithm.plan)).values()) == {4}


def test_the_adaptive_coefficient_moves_with_the_replies_of_an_iteration(built):
    """A KL far above its target: e is cut to .2, and 16 responses of a horizon of 160 give β·(1 + .2·16/160)."""
    adaptive = ("algorithm.kl_controller=adaptive", "algorithm.kl_target=1e-3", "algorithm.kl_horizon=160")
    algorithm = built(*adaptive, "algorithm.beta=0.5")
    assert float(kl_of_replies(algorithm).mean()) > 0.1
    assert algorithm.beta == pytest.approx(0.5 * 1.02)


def test_target_kl_is_compared_with_the_mean_over_a_step_s_tokens(built):
    """Passes of 2 and 6 tokens at .3 and .1 nats: the mean per token is (.6 + .6)/8 = .15, whatever the passes."""

    def outputs():
        parts = (torch.full((2,), 0.3), torch.full((6,), 0.1))
        return [LossOutput(torch.zeros(len(part)), {"approx_kl": part}) for part in parts]

    assert built("algorithm.target_kl=0.16").accept_step(outputs())
    algorithm = built("algorithm.target_kl=0.14")
    assert not algorithm.accept_step(outputs())
    assert algorithm.collect(1).micro == []  # the iteration's further updates are skipped


def test_logged_kl_is_nats_per_reply(built):
    """`kl` is the mean over responses of Σ_t k1, not the mean over tokens."""
    algorithm = built()
    metrics = read_jsonl(algorithm.run.directory / "metrics.jsonl")[0]
    tokens = algorithm.experience.tokens
    assert metrics["kl"] == pytest.approx(float(kl_of_replies(algorithm).mean()), rel=1e-4)
    assert metrics["kl_k3"] == pytest.approx(float(k3(tokens["old"], tokens["ref"]).sum() / 16), rel=1e-4)
    assert metrics["kl"] != pytest.approx(float(k1(tokens["old"], tokens["ref"]).mean()), rel=1e-2)
