"""Metrics that packs/judging/curation/ emits, beside those of made corpora (packs/judging/synthesis/metrics.py)."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

CURATION = (Metric("made/evaluation_items", "evaluation items that no row may hold"),)
"""curate.py"""
