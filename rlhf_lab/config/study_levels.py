"""Levels and seeds that a study runs: those of its recipe, changed by the study's size and by the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.overrides import as_overrides, level_name
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.core.errors import ConfigError


def quick_study(study: StudySettings, named: set[str]) -> tuple[StudySettings, list[str]]:
    """Return (study at its quick size, overrides of that size). Keys in `named`, from the command line, are kept.

    A list for a swept key replaces the key's levels.
    """
    quick = {key: value for key, value in study.quick.items() if key not in named}
    levels = {key: value for key, value in quick.items() if key in study.sweep and isinstance(value, list)}
    settings = {key: value for key, value in quick.items() if key not in levels}
    return with_levels(study, levels), as_overrides(settings)


def with_levels(study: StudySettings, levels: dict[str, list[Any]]) -> StudySettings:
    """Return the study with other levels of some swept keys. Claims about removed levels are dropped."""
    sweep = {**study.sweep, **levels}
    compared = sweep.get(study.compare, [])
    groups = sweep.get(study.by, [])
    claims = []
    for claim in study.predicts:
        has_levels = claim.level in compared and claim.versus in (None, *compared)
        if has_levels and claim.by in (None, *groups):
            claims.append(claim)
    return dataclasses.replace(study, sweep=sweep, predicts=claims)


def planned_seeds(first: list[Any], max_seeds: int) -> list[Any]:
    """Return `max_seeds` seeds: those of the sweep, then the integers after the largest of them.

    Values that are no seeds are returned unchanged: the check of the jobs reports them.
    """
    if not first or not all(isinstance(seed, int) for seed in first):
        return first
    if len(first) > max_seeds:
        raise ConfigError(
            f"the sweep has {len(first)} seeds, more than study.max_seeds={max_seeds}; set "
            f"study.max_seeds={len(first)} "
            "or name fewer seeds"
        )
    start = max(first) + 1
    return [*first, *range(start, start + max_seeds - len(first))]


def repeated_values(swept: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return a problem for each swept key without values, or with one twice. 1e-3 and 0.001 are the same number."""
    problems = []
    for key, levels in swept.items():
        names = [level_name(level) for level in levels]
        repeated = dict.fromkeys(name for name in names if names.count(name) > 1)
        if not names:
            problems.append(f"study.sweep.{key} has no values; write at least one")
        if repeated:
            problems.append(f"{key}={','.join(names)} has {', '.join(repeated)} more than once; write each value once")
    return problems


def shares_test_prompts(base: Mapping[str, Any]) -> bool:
    """Return True if all seeds are tested on the same prompts, because the data come from files."""
    kind = base["data"]["kind"]
    if kind == "mix":  # its parts decide; see `sweeps/seed_by_seed.py: check_prompts`
        return False
    settings_class: Any = registry.settings_class("data", kind)
    return not settings_class.is_generated
