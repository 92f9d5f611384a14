"""The claims of a study: what a claim compares, which seeds may decide it, its family, and the names of verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from rlhf_lab.config.overrides import level_name
from rlhf_lab.statistics.inference import holm
from rlhf_lab.studies.frame import RUN_SEED, Study
from rlhf_lab.studies.registration import RegisteredClaim, kind_of

CONFIRMED, REFUTED, UNCLEAR, UNTESTED = "confirmed", "not confirmed", "not distinguishable", "not tested"
SMALLER = "smaller than published"
AFTER_LOOK = "written after the look"
NOT_SWEPT = "not in this sweep"
VERDICTS = (CONFIRMED, REFUTED, SMALLER, UNCLEAR, UNTESTED, AFTER_LOOK, NOT_SWEPT)
"""All verdicts, in the order in which a conclusion lists them."""
OPEN = (UNCLEAR, UNTESTED, AFTER_LOOK)
"""Verdicts that further seeds can change."""
ALPHA = 0.05
"""Level of the tests after Holm's adjustment."""


def registered(study: Study, claim: Mapping[str, Any]) -> RegisteredClaim | None:
    """Return the registration of a claim, one of `predicts`, `correlations` or `rates`; None without one."""
    registration = study.registration
    # Old studies have no entries.
    claims = zip(study.predicts, registration.claims, strict=False)
    correlations = zip(study.correlations, registration.correlations, strict=False)
    rates = zip(study.rates, registration.rates, strict=False)
    for known, entry in (*claims, *correlations, *rates):
        if known == claim:
            return entry
    return None


def seen_seeds(study: Study, claim: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds that had been looked at when a claim was registered; they cannot decide it."""
    entry = registered(study, claim)
    return () if entry is None else entry.seen


def panel_of_claim(study: Study, claim: Mapping[str, Any]) -> Study | None:
    """Return the study with only the jobs that decide a claim; None if no job has the claim's value of `by`.

    A claim without `by` is decided by all jobs. Seeds that were seen before the claim was registered are left out.
    """
    panel: Study | None = study
    # If the command line set `by` to one value, the claims left are about that value.
    if claim.get("by") is not None and study.by in study.factors:
        panel = dict(study.panels()).get(level_name(claim["by"]))
    return None if panel is None else without_seeds(panel, seen_seeds(study, claim))


def without_seeds(study: Study, seeds: Collection[int]) -> Study:
    if not seeds:
        return study
    column = "seed" if "seed" in study.frame else RUN_SEED
    return dataclasses.replace(study, frame=study.frame[~study.frame[column].isin(seeds)])


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


def withdrawn_in_family(study: Study, claim: Mapping[str, Any]) -> int:
    """Return how many withdrawn claims of `predicts` belong to the family of a claim, for Holm's adjustment."""
    seen = seen_seeds(study, claim)
    withdrawn = [entry for entry in study.registration.withdrawn if kind_of(entry.meaning) == "claim"]
    return sum(entry.seen == seen for entry in withdrawn)


def family_of(study: Study, claim: Mapping[str, Any]) -> list[int]:
    """Return the indices of the claims that are adjusted together: those registered after the same seeds were seen."""
    seen = seen_seeds(study, claim)
    return [index for index, other in enumerate(study.predicts) if seen_seeds(study, other) == seen]


def family_holm(study: Study, p_values: Mapping[int, float]) -> dict[int, float]:
    """Return index of a claim → p-value after Holm's adjustment over its family; withdrawn claims count with p = 1."""
    adjusted = {}
    for index in p_values:
        claim = study.predicts[index]
        family = [other for other in family_of(study, claim) if other in p_values]
        values = [p_values[other] for other in family] + [1.0] * withdrawn_in_family(study, claim)
        adjusted[index] = holm(values)[family.index(index)]
    return adjusted
