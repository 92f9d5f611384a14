"""Figures of what a reward of speech is made of: acoustic features, and the phones that a recogniser hears."""

from __future__ import annotations

from rlhf_lab.reports.reward.parts import parts_section
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import Run

ACOUSTICS = (
    ("feature_spearman/", "Features against the truth, held-out clips", "Spearman's ρ"),
    ("feature_gain/", "What leaving a feature out costs", "held-out pair accuracy"),
    ("phone_error/", "Phone errors that the recogniser hears, held-out clips", "errors per phone"),
)


def acoustics(run: Run) -> PageSection | None:
    return parts_section(run, ACOUSTICS)
