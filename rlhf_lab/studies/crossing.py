"""Crossings of a study: the position, such as a number of hops, from which on a level is ahead of the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_lab.core.metrics import metric
from rlhf_lab.results.wording import compact, markdown_section, signed
from rlhf_lab.statistics.crossing import Crossing, find_crossing
from rlhf_lab.statistics.inference import Comparison
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs
from rlhf_lab.studies.replicates import level_difference

NOTE = (
    "Between measured positions the difference is interpolated. The interval has the positions at which a t test over "
    "seeds does not reject a difference of 0; it is open where it reaches the first or the last position."
)


@dataclass(frozen=True)
class LevelCrossing:
    """Difference of a level from the baseline at each position, and the position at which it changes its sign.

    Attributes:
        unit: unit of the positions, in plural.
        differences: difference from the baseline at each position; None without a pair of runs.
        crossing: the crossing; None if a position has no difference.
        lower_is_better: True if the side with lower values is ahead.
    """

    level: str
    unit: str
    positions: tuple[float, ...]
    differences: tuple[Comparison | None, ...]
    crossing: Crossing | None
    lower_is_better: bool = False


def crossings_of(study: Study) -> list[LevelCrossing]:
    """Return the crossings that a study requests: one per entry of `study.crossings` and level."""
    others = [level for level in study.levels if level != study.baseline]
    return [_level_crossing(study, plan, level) for plan in study.crossings for level in others]


def _level_crossing(study: Study, plan: Mapping[str, Any], level: str) -> LevelCrossing:
    """Compute the crossing of one level. `plan` is an entry of `study.crossings` with `metrics`, `at` and `unit`."""
    differences = tuple(level_difference(study, name, level) for name in plan["metrics"])
    columns = []
    for name in plan["metrics"]:
        pairs = paired_jobs(study, name, level)
        columns.append((pairs["a"] - pairs["b"]).to_numpy(dtype=float))
    crossing = None
    errors = [difference.standard_error for difference in differences if difference is not None]
    if len(errors) == len(differences):
        difference_SK = np.array(columns).T
        scored_S = np.isfinite(difference_SK).all(axis=1)
        if scored_S.any():  # the floor of the study's own tests also holds here
            crossing = find_crossing(plan["at"], difference_SK[scored_S], min_error_K=np.nan_to_num(errors))
    lower_is_better = metric(plan["metrics"][0]).better == "lower"
    return LevelCrossing(level, plan["unit"], tuple(map(float, plan["at"])), differences, crossing, lower_is_better)


def crossing_conclusion(study: Study) -> str:
    return " ".join(_sentence(study, row) for row in crossings_of(study) if row.crossing is not None)


def _sentence(study: Study, row: LevelCrossing) -> str:
    crossing = row.crossing
    assert crossing is not None
    level, baseline = study.label(row.level), study.label(study.baseline)
    first, last = row.positions[0], row.positions[-1]
    span = f"between {first:g} and {last:g} {row.unit}"
    if crossing.direction == "none":
        return f"The means of {level} and {baseline} do not cross {span}."
    if crossing.direction == "several":
        return f"The means of {level} and {baseline} cross more than once {span}, so no crossing is estimated."
    leads = (crossing.direction == "up") != row.lower_is_better
    ahead, behind = (level, baseline) if leads else (baseline, level)
    return (
        f"By the means, {ahead} is ahead of {behind} from {compact(crossing.at)} {row.unit} on; "
        f"95 % interval {interval_text(crossing)}."
    )


def interval_text(crossing: Crossing) -> str:
    if math.isnan(crossing.low):
        return "unknown (one seed)" if crossing.seeds < 2 else "empty"
    low = "below the first position" if math.isinf(crossing.low) else compact(crossing.low)
    high = "beyond the last position" if math.isinf(crossing.high) else compact(crossing.high)
    return f"from {low} to {high}"


def crossing_title(study: Study, row: LevelCrossing) -> str:
    return f"Crossing of {study.label(row.level)} and {study.label(study.baseline)}"


def crossing_note(study: Study, row: LevelCrossing) -> str:
    """Return where the means cross, and how the interval is computed."""
    return f"{_sentence(study, row) if row.crossing else 'Not every position has a pair of runs.'} {NOTE}"


def crossing_rows(row: LevelCrossing) -> list[tuple[str, str]]:
    """Return (position, difference from the baseline) as text for each position."""
    return [
        (f"{position:g}", "–" if comparison is None else signed(comparison.difference))
        for position, comparison in zip(row.positions, row.differences, strict=True)
    ]


def crossing_markdown(study: Study) -> str:
    return "".join(
        markdown_section(
            crossing_title(study, row), crossing_note(study, row), (row.unit, "difference"), crossing_rows(row), "rr"
        )
        for row in crossings_of(study)
    )
