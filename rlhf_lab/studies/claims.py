"""The claims of a study: what a claim compares, and the names of verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config.overrides import level_name
from rlhf_lab.studies.frame import Study

CONFIRMED, REFUTED, UNCLEAR, UNTESTED = "confirmed", "not confirmed", "not distinguishable", "not tested"
SMALLER = "smaller than published"
NOT_SWEPT = "not in this sweep"
VERDICTS = (CONFIRMED, REFUTED, SMALLER, UNCLEAR, UNTESTED, NOT_SWEPT)
"""All verdicts, in the order in which a conclusion lists them."""
ALPHA = 0.05
"""Level of the tests after Holm's adjustment."""


def panel_of_claim(study: Study, claim: Mapping[str, Any]) -> Study | None:
    """Return the jobs that a claim is about: all, or those with one value of `by`; None if there are none."""
    if claim.get("by") is None:
        return study
    if study.by not in study.factors:  # the command line set `by` to one value; the claims left are about that value
        return study
    return dict(study.panels()).get(level_name(claim["by"]))


def compared_levels(study: Study, claim: Mapping[str, Any]) -> tuple[str, str]:
    """Return the level of a claim and the level that it is compared with, by default the baseline."""
    versus = study.baseline if claim.get("versus") is None else level_name(claim["versus"])
    return level_name(claim["level"]), versus


def missing_levels(study: Study, claim: Mapping[str, Any]) -> list[str]:
    """Return labels of the levels that a claim compares but no job of the study has, finished or not."""
    missing = [study.label(level) for level in compared_levels(study, claim) if level not in study.levels]
    if panel_of_claim(study, claim) is None:
        missing.append(study.panel_label(level_name(claim["by"])))
    return missing
