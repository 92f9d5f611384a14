"""A stage that ended well but did nothing says so, with the likely cause; a healthy one says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.config import registry
from rlhf_lab.monitoring import silence
from rlhf_lab.statistics.estimates import Estimate


def remarks(kind: str, *numbers) -> list[str]:
    return silence.remarks(registry.settings_class("algorithm", kind), *numbers)


def rows(count: int = 30, **changes: float | None) -> list[dict]:
    """Logged rows of a healthy run: its loss falls and its gradients are there."""
    rng = np.random.default_rng(0)
    return [
        {"step": i, "loss": 0.69 - 0.01 * i + 0.02 * rng.normal(), "grad_norm": 1.0, "unscored": 0.0, "reward_sd": 0.8}
        | {"ended": 0.9}
        | changes
        for i in range(count)
    ]


def policies(kl: float = 0.4, implicit: tuple[float, float, float] = (0.7, 0.65, 0.75)) -> list[dict]:
    estimate = Estimate(kl, kl - 1e-4, kl + 1e-4, 64, 16).to_dict()
    accuracy = Estimate(*implicit, 64, 16).to_dict()
    zero = Estimate(0.0, 0.0, 0.0, 64, 16).to_dict()
    return [
        {"name": "SFT", "metrics": {"kl": zero}},
        {"name": "DPO", "metrics": {"kl": estimate, "implicit_accuracy": accuracy}},
    ]


HEALTHY = {"accuracy": Estimate(0.7, 0.65, 0.75, 500, 300), "wasted_groups": 0.3, "auroc/planted": 0.9}


@pytest.mark.parametrize("kind", ["sft", "reward_model", "dpo", "dpo_iterative", "grpo", "ppo", "compare", "prm"])
def test_a_healthy_run_has_no_remark(kind):
    assert remarks(kind, rows(), policies(), HEALTHY) == []
    assert remarks(kind, [], [], {}) == []


@pytest.mark.parametrize(
    ("kind", "found", "words"),
    [
        ("grpo", remarks("grpo", rows(), policies(), {"wasted_groups": 1.0}), "every group wasted"),
        ("grpo", remarks("grpo", rows(), policies(), {"wasted_groups": 0.95}), "95% of groups wasted"),
        ("ppo", remarks("ppo", rows(unscored=1.0, reward_sd=None), policies(), {}), "scored none of the sampled"),
        ("ppo", remarks("ppo", rows(reward_sd=0.0), policies(), {}), "all sampled responses had the same reward"),
        ("grpo", remarks("grpo", rows(grad_norm=0.0), policies(), {}), "no gradient: its norm was 0"),
        ("sft", remarks("sft", rows(loss=0.69), [], {}), "nothing learned: the loss went from 0.69 to 0.69"),
        ("dpo", remarks("dpo", rows(), policies(kl=2e-5), {}), "DPO equals SFT: KL 2e-05 nats"),
        ("dpo", remarks("dpo", rows(), policies(implicit=(0.52, 0.47, 0.57)), {}), "implicit accuracy 0.520"),
        (
            "reward_model",
            remarks("reward_model", rows(), [], {"accuracy": Estimate(0.51, 0.46, 0.56, 400, 300)}),
            "held-out accuracy 0.510 [0.460, 0.560] is not above chance",
        ),
        (
            "prm",
            remarks("prm", rows(), [], {"auroc/planted": Estimate(0.4, 0.3, 0.5, 400, 300)}),
            "auroc 0.400 [0.300, 0.500] is not above chance",
        ),
    ],
)
def test_each_silence_is_named_with_a_likely_cause(kind, found, words):
    (note,) = found
    assert words in note and "ikely" in note, kind


def test_replies_that_never_end_are_named():
    (note,) = remarks("ppo", rows(reward_sd=0.0, ended=0.0), policies(), {})
    assert note.endswith("no response ended within rollout.max_new_tokens")


def test_a_rising_loss_is_no_remark_where_the_loss_need_not_fall():
    assert remarks("ppo", rows(loss=0.1), policies(), {}) == []


def test_values_that_are_missing_are_no_evidence():
    assert remarks("reward_model", rows(4), [], {"accuracy": {"mean": None}}) == []
    assert remarks("grpo", rows(loss=None, grad_norm=None), policies(kl=math.pi), {"wasted_groups": None}) == []


def test_a_fall_counts_from_one_standard_error_on():
    """Thirds of three losses with sd .1 each: standard error √(.01/3 + .01/3) = .0816 of their difference."""

    def fallen(by: float) -> bool:
        losses = [0.9, 1.0, 1.1, 5.0, 5.0, 5.0, 0.9 - by, 1.0 - by, 1.1 - by]
        return silence.loss_did_not_fall([{"loss": loss} for loss in losses]) is None

    assert [fallen(by) for by in (-0.2, 0.0, 0.08, 0.083, 0.2)] == [False, False, False, True, True]
