"""Metrics that algorithms/trl/ emits besides those of the native engine."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

TRL = (
    Metric(
        "trl/<name>", "what TRL logs, under its own name; what means the same as a metric of the lab is also under that"
    ),
)
"""callback.py"""
