"""Report figures of the components of a speech reward: acoustic features and recognised phones."""

from __future__ import annotations

from rlhf_lab.reports.reward.card import parts_section
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import StoredRun

ACOUSTICS = (
    ("feature_spearman/", "Rank correlation of features with the truth, held-out clips", "Spearman's ρ"),
    ("feature_gain/", "Accuracy lost when a feature is left out", "held-out pair accuracy"),
    ("phone_error/", "Phone errors of the recogniser, held-out clips", "errors per phone"),
)


def acoustics(run: StoredRun) -> PageSection | None:
    return parts_section(run, ACOUSTICS)
