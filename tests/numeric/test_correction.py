"""Importance correction (losses/policy.py): weights by hand, what they make right, and where they go."""

from __future__ import annotations

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.losses.policy import effective_fraction, importance_weights
from rlhf_lab.training.run import Run

SIZE = ("reward=length", "needs.reward=null", "algorithm.prompts_per_iteration=4", "algorithm.batch_size=8")


def test_weights_by_hand():
    """Training says .30 where the sampler drew with .25, .10 with .20, .60 with .10: 1.2, .5, and 6 cut to 2."""
    old, sampler = torch.tensor([0.30, 0.10, 0.60]).log(), torch.tensor([0.25, 0.20, 0.10]).log()
    assert importance_weights(old - sampler, cap=2.0).tolist() == pytest.approx([1.2, 0.5, 2.0])
    # as one reply: 1.2 · .5 · 6 = 3.6, cut to 2; with a cap of 4 it stays
    full = (old - sampler).sum()[None]
    assert importance_weights(full, cap=2.0).tolist() == pytest.approx([2.0])
    assert importance_weights(full, cap=4.0).tolist() == pytest.approx([3.6])
    # a ratio of e^200 is no float32 number
    assert importance_weights(torch.tensor([200.0]), cap=2.0).tolist() == pytest.approx([2.0])


def test_the_effective_share_by_hand():
    """Weights 1, 1, 2: (1 + 1 + 2)² / (3 · (1 + 1 + 4)) = 16/18. A common factor changes nothing."""
    weights = torch.tensor([1.0, 1.0, 2.0])
    assert float(effective_fraction(weights.log())) == pytest.approx(16 / 18)
    assert float(effective_fraction((1e30 * weights).log())) == pytest.approx(16 / 18)
    assert float(effective_fraction(torch.zeros(7))) == pytest.approx(1.0)
    assert float(effective_fraction(torch.tensor([0.0, -500.0, -500.0, -500.0]))) == pytest.approx(0.25)


def test_weighted_samples_give_the_expectation_under_the_policy():
    """Five tokens drawn from μ: Σ w·f / n is near E_π f, which Σ f / n is not. With an exact sum over tokens: equal."""
    policy, sampler = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]), torch.tensor([0.25, 0.15, 0.2, 0.2, 0.2])
    value = torch.tensor([1.0, -2.0, 3.0, 0.5, 4.0])
    weights = importance_weights(policy.log() - sampler.log(), cap=10.0)
    assert float((sampler * weights * value).sum()) == pytest.approx(float((policy * value).sum()))
    assert abs(float((sampler * value).sum()) - float((policy * value).sum())) > 0.1


@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_a_step_s_loss_has_the_weights(correction, policy, tmp_path):
    """The sampler's log-probabilities are moved by hand; training's stay. w = exp(old − sampler), cut to 1.5."""
    chosen = ("rollout.dtype=bfloat16", f"algorithm.correction={correction}", "algorithm.correction_cap=1.5")
    plan = planned("grpo", *SMALL_WORLD, *ONE_LAYER, *SIZE, f"needs.policy={policy}", *chosen, "algorithm.beta=0")
    run = Run(tmp_path, plan.config, {"policy": str(policy)})
    algorithm = registry.build("algorithm", plan.config.algorithm, run)
    algorithm._check_start = lambda *_: 0.0
    draw = algorithm.rollouts.draw
    moved: list[float] = []

    def move(model, iteration):
        groups, metrics = draw(model, iteration)
        for index, segment in enumerate(s for g in groups for e in g.episodes for s in e.segments):
            shift = 0.4 * (-1) ** index
            segment.logps[:] = [logp + shift * (position % 3) for position, logp in enumerate(segment.logps)]
            moved.extend(segment.logps)
        return groups, metrics

    algorithm.rollouts.draw = move
    (micro, *_) = algorithm.collect(0).micro
    tokens, experience = algorithm.experience.tokens, algorithm.experience
    log_ratio = tokens["old"] - torch.tensor(moved)
    (row,) = [row for row in read_jsonl(tmp_path / "metrics.jsonl") if "sampler_log_ratio" in row]
    assert row["sampler_log_ratio"] == pytest.approx(float(log_ratio.mean()), abs=1e-5)
    assert row["sampler_log_ratio_max"] == pytest.approx(float(log_ratio.abs().max()), abs=1e-5)
    if correction == "none":
        ratio = log_ratio.exp()
        expected_share = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
        assert row["sampler_ess"] == pytest.approx(float(expected_share), rel=1e-4)
        assert "correction" not in tokens and "correction_capped" not in row
        return
    if correction == "sequence":
        sums = torch.tensor([float(part.sum()) for part in log_ratio.split(experience.sampled_lengths)])
        log_ratio = sums.repeat_interleave(torch.tensor(experience.sampled_lengths))
    expected = log_ratio.exp().clamp(max=1.5)
    assert torch.allclose(tokens["correction"], expected, rtol=1e-4)
    assert 0 < row["correction_capped"] < 1 and 0 < row["sampler_ess"] <= 1
    # at ratio 1 the loss of a token is −w·A
    out = algorithm.loss(micro)
    target = -micro.tokens["correction"] * micro.tokens["advantage"] * micro.weight_N
    assert torch.allclose(out.loss_N, target, atol=1e-5)
    assert float(target.abs().max()) > 0


def test_a_correction_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="has nothing to correct"):
        planned("grpo", "algorithm.correction=token")
    with pytest.raises(ConfigError, match=r"correction=token compares the sampler with training"):
        planned("grpo", "rollout.dtype=bfloat16", "algorithm.correction=token", "algorithm.old_logps=sampler")


def test_stages_without_a_correction_keep_their_key():
    assert planned("grpo", "algorithm.correction=auto", "algorithm.correction_cap=2").key == planned("grpo").key
    corrected = planned("grpo", "rollout.dtype=bfloat16", "algorithm.correction=token").settings_key
    assert corrected != planned("grpo", "rollout.dtype=bfloat16").settings_key
