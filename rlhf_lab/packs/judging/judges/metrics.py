"""Metrics of rlhf_lab/packs/judging/judges/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

COST = (
    Metric(
        "judge/usd", "cost in USD of the judge's answers, over all attempts of the run", title="cost", better="lower"
    ),
    Metric(
        "judge/usd_per_label",
        "that cost divided by the labels (grades, pairs, rows) that the run made of the answers",
        title="cost per label",
        better="lower",
    ),
)
"""Metrics of label_cost.py."""
