"""Metrics that rlhf_lab/rewards/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

REWARD_GRAPH = (
    Metric("reward/<term>", "value of a term of the reward graph, before it is standardised, transformed and weighted"),
    Metric("reward/<term>/<part>", "a part of the term under the term's own name for it, e.g. a member of an ensemble"),
    Metric("reward/aggregate", "the weighted sum of the terms, if temperature, ceiling or stated confidence change it"),
    Metric("reward/confidence", "the confidence that a response states, in [0, 1] (reward.confidence_weight)"),
    Metric("reward/confidence/baseline", "the mean reward with which the stated confidence is compared"),
)
"""graph.py"""

LEARNED = (
    Metric(
        "reward/bt", "score of the learned reward model for the responses, before weighting", title="learned reward"
    ),
)
"""learned/bt.py"""
