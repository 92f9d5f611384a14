"""Metrics that rlhf_lab/algorithms/trl/ emits in addition to those of the native engine."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

TRL = (
    Metric(
        "trl/<name>", "metric that TRL logs, under its own name; those with an equivalent here are logged under both"
    ),
)
"""callback.py"""
