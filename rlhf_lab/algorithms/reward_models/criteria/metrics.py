"""Metrics that rlhf_lab/algorithms/reward_models/criteria/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

CRITERIA_REWARD = (
    Metric("pairs", "labelled pairs used to construct the reward"),
    Metric(
        "log_loss",
        "mean −log of the probability that the reward gives the label of a held-out pair, nats; ln 2 is a coin toss",
        title="log loss",
        better="lower",
    ),
    Metric("slope", "log-odds of a preference per point of the grade"),
    Metric("criteria_kept", "criteria with a weight", title="criteria kept"),
    Metric("weight/<criterion>", "weight of a standardised criterion"),
    Metric(
        "agreement/<criterion>", "Spearman's ρ of a criterion's difference with which response won, on validation pairs"
    ),
)
"""criteria_reward.py"""
