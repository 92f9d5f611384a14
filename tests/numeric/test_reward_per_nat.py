"""Comparison of an evaluation with its reference: wins, and gain per nat of KL if the KL clearly differs from 0."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.core.console import console
from rlhf_lab.evaluations.best_of_n import estimates, expected_values
from rlhf_lab.evaluations.evaluator import LEAST_NATS, SAMPLE_KEYS, Evaluator, far_enough
from rlhf_lab.reports.policy_table import PolicyTable
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.run_settings import Evaluation


def kl(mean: float, half: float) -> Estimate:
    return Estimate(mean, mean - half, mean + half, 64, 16)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (kl(0.341, 0.012), True),
        (kl(LEAST_NATS, 0.01), True),
        (kl(0.049, 0.001), False),  # precise, but nearly the reference: the gain is noise over nothing
        (kl(2e-6, 1e-6), False),  # printed −12758.82 ±20557.89
        (kl(0.2, 0.09), True),
        (kl(0.2, 0.11), False),  # known to less than half its size
        (kl(0.0, 0.0), False),
        (Estimate(0.5, -math.inf, math.inf, 4, 1), False),
    ],
)
def test_the_ratio_needs_a_distance(estimate, expected):
    assert far_enough(estimate) is expected


def test_a_policy_without_the_ratio_has_a_dash():
    number = {"mean": 1.5, "low": 1.4, "high": 1.6, "n": 8, "clusters": 4}
    policies = [
        {"name": "far", "metrics": {"kl": number, "reward_per_nat": number}},
        {"name": "near", "metrics": {"kl": number}},
    ]
    with console.capture() as captured:
        console.print(PolicyTable(policies))
    assert "–" in next(line for line in captured.get().splitlines() if "near" in line)


def row(policy: str, prompt: int, **values: float) -> dict:
    return dict.fromkeys(SAMPLE_KEYS) | {"policy": policy, "prompt_id": prompt, **values}


def summary(judge: str) -> dict[str, Estimate]:
    """Proxies 1, 2, 3, 2 of the reference become 4, 2, 4, 2; the KL is half a nat. `judge` has the same values."""
    start, end = [1.0, 2.0, 3.0, 2.0], [4.0, 2.0, 4.0, 2.0]
    evaluator = Evaluator.__new__(Evaluator)
    evaluator.settings = Evaluation()
    evaluator.is_spoken = False
    evaluator.run = SimpleNamespace(data=SimpleNamespace(oracle=None), corpus=SimpleNamespace(measures=()))
    evaluator._reference_rows = [
        row("SFT", i, **{"proxy": value, judge: value, "kl": 0.0}) for i, value in enumerate(start)
    ]
    return evaluator._summarise([row("PPO", i, **{"proxy": v, judge: v, "kl": 0.5}) for i, v in enumerate(end)])


def test_the_gain_per_nat_is_over_the_reference():
    """(3 − 2)/.5 = 2 per nat; without the reference's 2 it would be 3/.5 = 6."""
    assert summary("gold")["reward_per_nat"].mean == pytest.approx(2.0)


@pytest.mark.parametrize("judge", ["gold", "proxy"])
def test_a_tie_is_half_a_win(judge):
    """Two better, two equal: (1 + ½ + 1 + ½)/4. As wins they would give 1, as losses ½."""
    assert summary(judge)["win_rate"].mean == 0.75


def test_best_of_n_gains_over_the_policy_and_ties_are_half_wins():
    """One prompt of two replies, twice: best of 2 by proxy is 3, the policy's mean 2; KL of best of 2 is ln 2 − ½.

    By gold the best reply ties with one of two opponents and beats the other: ¾.
    """
    responses = [row("SFT", 0, proxy=1.0, gold=0.0), row("SFT", 0, proxy=3.0, gold=1.0)]
    opponents = [row("SFT", 0, gold=1.0), row("SFT", 0, gold=0.0)]
    expected = expected_values([responses, responses], [opponents, opponents], [1, 2])
    best = {key: values_PS[:, 1] for key, values_PS in expected.items()}
    found = estimates(2, best, expected["proxy"][:, 0])
    assert found["reward_per_nat"].mean == pytest.approx((3 - 2) / (np.log(2) - 0.5))
    assert found["win_rate"].mean == 0.75


def test_best_of_n_has_one_judge_for_all_prompts():
    """A prompt whose responses gold leaves unscored has no win rate; the proxy would call it 1."""
    scored = [row("SFT", 0, proxy=1.0, gold=0.0), row("SFT", 0, proxy=3.0, gold=1.0)]
    unscored = [row("SFT", 1, proxy=1.0, gold=None), row("SFT", 1, proxy=3.0, gold=None)]
    opponents = [row("SFT", 0, proxy=0.0, gold=0.0)]
    expected = expected_values([scored, unscored], [opponents, opponents], [2])
    assert expected["win_rate"][0, 0] == 1.0 and np.isnan(expected["win_rate"][1, 0])
