"""Metrics of packs/judging/curation/, besides those of synthetic corpora (packs/judging/synthesis/metrics.py)."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

CURATION = (Metric("made/evaluation_items", "evaluation items that no row may contain"),)
"""Metrics of curate.py."""
