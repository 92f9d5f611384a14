"""Metrics that rlhf_lab/evaluations/suite/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SUITE = (
    Metric("golden/<set>", "fraction of responses to the prompts of a golden set that pass its check", better="higher"),
    Metric("harness/<task>", "mean of a metric of a task of lm-evaluation-harness over its documents"),
)
"""eval_suite.py"""
