"""Metrics that rlhf_lab/rewards/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

REWARD_GRAPH = (
    Metric("reward/<term>", "value of a term of the reward graph, before it is standardised, transformed and weighted"),
    Metric("reward/<term>/<part>", "a part of the term that it names itself, such as a member of an ensemble"),
    Metric(
        "reward/aggregate", "the terms' one value before temperature, ceiling, confidence and clip, where there are any"
    ),
    Metric("reward/confidence", "the confidence that a reply states, in [0, 1] (reward.confidence_weight)"),
    Metric("reward/confidence/baseline", "the mean reward that it was held against"),
)
"""graph.py"""

LEARNED = (
    Metric(
        "reward/bt", "what the learned reward model says of the responses, before weighting", title="learned reward"
    ),
)
"""learned/bt.py"""
