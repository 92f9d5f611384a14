"""Metrics of rlhf_lab/packs/speech/codec_dpo/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ROUND = (
    Metric("refused", "fraction of the sampled clips that a gate of the reward refused", kind="rate", better="lower"),
    Metric("finished", "fraction of the sampled clips that the model ended itself", kind="rate", better="higher"),
)
"""Metrics of codec_dpo.py, in addition to those of iterative DPO."""
