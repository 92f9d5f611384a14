"""Gain per nat of KL is given only where the KL is clearly away from 0."""

from __future__ import annotations

import math

import pytest

from rlhf_lab.algorithms.evaluation import LEAST_NATS, far_enough
from rlhf_lab.analysis.estimates import Estimate
from rlhf_lab.policy_table import PolicyTable
from rlhf_lab.trackers.console import console


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
