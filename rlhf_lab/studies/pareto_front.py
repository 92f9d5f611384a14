"""Pareto front of a study's levels by two metrics: no other level is better in one and at least as good in the other.

A level counts as dominated only if the study's paired comparisons show it beyond their uncertainty. For each other
level, take the differences so that values above 0 are better:

    dominated by it  ⇔  low of one difference > 0,  and  low of the other difference > −margin

Here `low` is the lower end of the 95 % interval over seeds. Intervals are not adjusted for the number of levels, so a
level that is only just dominated may be so by chance. With few seeds most levels are not dominated. A level that is
behind another by the means alone gets the standing "not told apart from it".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.results.wording import compact, markdown_section, metric, metric_phrase, metric_title
from rlhf_lab.statistics.inference import Estimate
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.replicates import level_difference, level_mean
from rlhf_lab.studies.replication import list_in_words

ON_FRONT, UNCLEAR, DOMINATED, UNSCORED = "on the front", "not told apart from it", "dominated", "not scored"


@dataclass(frozen=True)
class ParetoLevel:
    """Position of one level relative to a Pareto front.

    Attributes:
        first, second: mean over seeds in each of the two metrics.
        standing: `on the front` if the means of no other level are better in one metric and at least as good in the
            other; `dominated` by another level beyond the intervals; `not told apart from it` otherwise; `not scored`
            if a metric has no value.
    """

    level: str
    first: Estimate
    second: Estimate
    standing: str
    dominated_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParetoFront:
    """Levels of a study by two metrics, of which one may be worse by the margin in a level that dominates."""

    metrics: tuple[str, str]
    margin: float
    levels: tuple[ParetoLevel, ...]


def fronts_of(study: Study) -> list[ParetoFront]:
    return [_pareto_front(study, plan) for plan in study.fronts]


def _pareto_front(study: Study, plan: Mapping[str, Any]) -> ParetoFront:
    """Compute one Pareto front. `plan` is an entry of `study.fronts` with `metrics` and `margin`."""
    first, second = metrics = (plan["metrics"][0], plan["metrics"][1])
    margin = float(plan["margin"])
    means = {level: (level_mean(study, first, level), level_mean(study, second, level)) for level in study.levels}
    levels = []
    for level, level_means in means.items():
        others = [other for other in means if other != level]
        dominated_by = tuple(other for other in others if _dominates(study, metrics, other, level, margin))
        if any(math.isnan(estimate.mean) for estimate in level_means):
            standing = UNSCORED
        elif dominated_by:
            standing = DOMINATED
        elif any(_is_ahead(metrics, means[other], level_means) for other in others):
            standing = UNCLEAR
        else:
            standing = ON_FRONT
        levels.append(ParetoLevel(level, *level_means, standing, dominated_by))
    return ParetoFront(metrics, margin, tuple(levels))


def _dominates(study: Study, metrics: tuple[str, str], level: str, versus: str, margin: float) -> bool:
    """Return True if `level` is better than `versus` beyond the interval in one metric and not worse in the other."""
    lows = []
    for name in metrics:
        comparison = level_difference(study, name, level, versus)
        if comparison is None or not comparison.difference.bounded:
            return False
        gap = comparison.difference
        # A difference of a metric that should be low is negated, so its lower end is minus the upper end.
        lows.append(gap.low if _sign(name) > 0 else -gap.high)
    return dominates(lows[0], lows[1], margin)


def dominates(first_low: float, second_low: float, margin: float) -> bool:
    """Apply the rule to the lower ends of the intervals of both differences, where values above 0 are better."""
    return max(first_low, second_low) > 0 and min(first_low, second_low) > -margin


def _is_ahead(metrics: tuple[str, str], means: tuple[Estimate, Estimate], versus: tuple[Estimate, Estimate]) -> bool:
    """Return True if means are better in one metric and at least as good in the other."""
    gaps = [_sign(name) * (a.mean - b.mean) for name, a, b in zip(metrics, means, versus, strict=True)]
    return all(gap >= 0 for gap in gaps) and any(gap > 0 for gap in gaps)  # False if a gap is NaN


def _sign(name: str) -> int:
    return -1 if metric(name).better == "lower" else 1


def pareto_title(pareto_front: ParetoFront) -> str:
    first, second = (metric_phrase(name) for name in pareto_front.metrics)
    return f"Pareto front of {first} and {second}"


def pareto_headings(pareto_front: ParetoFront) -> tuple[str, ...]:
    return ("level", *(metric_title(name) for name in pareto_front.metrics), "standing")


def pareto_cells(study: Study, row: ParetoLevel) -> tuple[str, ...]:
    return (study.label(row.level), compact(row.first), compact(row.second), standing_in_words(study, row))


def standing_in_words(study: Study, row: ParetoLevel) -> str:
    if row.standing != DOMINATED:
        return row.standing
    return f"{DOMINATED} by {list_in_words([study.label(level) for level in row.dominated_by])}"


def pareto_note(pareto_front: ParetoFront) -> str:
    return (
        "A level is dominated if another one is better in one metric beyond the 95 % interval of their difference, "
        f"paired by seed, and not worse in the other by {pareto_front.margin:g} or more (lower end of that interval). "
        "Comparisons are not adjusted for their number. A level is “not told apart from it” if only the means, and not "
        "the intervals, put it behind another."
    )


def pareto_conclusion(study: Study) -> str:
    """Return one sentence per front: the levels on it and the dominated ones; empty if nothing was scored."""
    sentences = []
    for pareto_front in fronts_of(study):
        on_front = [study.label(row.level) for row in pareto_front.levels if row.standing == ON_FRONT]
        if not on_front:
            continue
        sentence = f"{pareto_title(pareto_front)}, judged by the means: {list_in_words(on_front)}"
        rows = [row for row in pareto_front.levels if row.standing == DOMINATED]
        dominated = [f"{study.label(row.level)} is {standing_in_words(study, row)}" for row in rows]
        sentence += f"; beyond the intervals, {list_in_words(dominated)}" if dominated else "; no level is dominated"
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def pareto_markdown(study: Study) -> str:
    sections = []
    for index, pareto_front in enumerate(fronts_of(study)):
        rows = [pareto_cells(study, row) for row in pareto_front.levels]
        note = f"Figure: `{pareto_file(index)}.svg`. {pareto_note(pareto_front)}"
        title, headings = pareto_title(pareto_front), pareto_headings(pareto_front)
        sections.append(markdown_section(title, note, headings, rows, "lrrl"))
    return "".join(sections)


def pareto_file(number: int) -> str:
    """Return the name of a front's figure, without its suffix; fronts are numbered from 0."""
    return "front" if number == 0 else f"front_{number + 1}"
