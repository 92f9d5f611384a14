"""Metrics that rlhf_lab/algorithms/supervised/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SFT = (
    Metric(
        "heldout_nll",
        "mean −log p of a held-out response token, nats, EOS included",
        title="held-out loss",
        unit="nats",
        better="lower",
    ),
)
"""sft.py"""
