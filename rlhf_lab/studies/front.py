"""Which levels of a study are on the front of two metrics: no other level is better in one and as good in the other.

A level is dominated only where that is beyond the uncertainty of the study's own paired comparisons. For each other
level, differences are taken so that above 0 is better:

    dominated by it  ⇔  low of one difference > 0,  and  low of the other difference > −margin

with `low` the lower end of the 95 % interval over seeds. Each comparison stands for itself: intervals are not adjusted
for the number of levels, so a level that is only just dominated may be so by chance, and few seeds leave most levels
undominated. A level that the means alone put behind another is said to be not told apart from the front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.results.wording import compact, markdown_row, metric, metric_phrase, metric_title
from rlhf_lab.statistics.inference import Estimate
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.replicates import level_difference, level_mean
from rlhf_lab.studies.replication import list_in_words

ON_FRONT, UNCLEAR, DOMINATED, UNSCORED = "on the front", "not told apart from it", "dominated", "not scored"


@dataclass(frozen=True)
class FrontLevel:
    """One level on a front.

    Attributes:
        first, second: its mean over seeds in the front's two metrics.
        standing: `on the front`: the means of no other level are better in one metric and at least as good in the
            other; `dominated` by another level beyond the intervals; `not told apart from it` otherwise; `not scored`
            without a value of both metrics.
        dominated_by: the levels that dominate it.
    """

    level: str
    first: Estimate
    second: Estimate
    standing: str
    dominated_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Front:
    """The levels of a study by two metrics.

    Attributes:
        margin: by which a level may be worse in one metric and still dominate, in the metrics' unit.
    """

    metrics: tuple[str, str]
    margin: float
    levels: tuple[FrontLevel, ...]


def fronts_of(study: Study) -> list[Front]:
    """The fronts that the study asks for, in its order."""
    return [_front(study, plan) for plan in study.fronts]


def _front(study: Study, plan: Mapping[str, Any]) -> Front:
    first, second = plan["metrics"]
    margin = float(plan["margin"])
    means = {level: (level_mean(study, first, level), level_mean(study, second, level)) for level in study.levels}
    levels = []
    for level, (first_mean, second_mean) in means.items():
        others = [other for other in means if other != level]
        dominated_by = tuple(other for other in others if _dominates(study, (first, second), other, level, margin))
        if math.isnan(first_mean.mean) or math.isnan(second_mean.mean):
            standing = UNSCORED
        elif dominated_by:
            standing = DOMINATED
        elif any(_is_ahead((first, second), means[other], means[level]) for other in others):
            standing = UNCLEAR
        else:
            standing = ON_FRONT
        levels.append(FrontLevel(level, first_mean, second_mean, standing, dominated_by))
    return Front((first, second), margin, tuple(levels))


def _dominates(study: Study, metrics: tuple[str, str], level: str, versus: str, margin: float) -> bool:
    """Whether a level is better than another beyond the interval in one metric, and not worse in the other."""
    lows = []
    for name in metrics:
        comparison = level_difference(study, name, level, versus)
        if comparison is None or not comparison.difference.bounded:
            return False
        gap = comparison.difference
        lows.append(gap.low if _sign(name) > 0 else -gap.high)
    return dominates(lows[0], lows[1], margin)


def dominates(first_low: float, second_low: float, margin: float) -> bool:
    """The rule, from the lower ends of the intervals of both differences, above 0 being better."""
    return (first_low > 0 and second_low > -margin) or (second_low > 0 and first_low > -margin)


def _is_ahead(metrics: tuple[str, str], means: tuple[Estimate, Estimate], versus: tuple[Estimate, Estimate]) -> bool:
    """Whether means are better in one metric and at least as good in the other."""
    gaps = [_sign(name) * (a.mean - b.mean) for name, a, b in zip(metrics, means, versus, strict=True)]
    return all(gap >= 0 for gap in gaps) and any(gap > 0 for gap in gaps)  # False where one is NaN


def _sign(name: str) -> int:
    return -1 if metric(name).better == "lower" else 1


def front_title(front: Front) -> str:
    first, second = (metric_phrase(name) for name in front.metrics)
    return f"Front of {first} and {second}"


def front_headings(front: Front) -> tuple[str, ...]:
    return ("level", *(metric_title(name) for name in front.metrics), "standing")


def front_cells(study: Study, row: FrontLevel) -> tuple[str, ...]:
    """A level as text, in the order of `front_headings`."""
    return (study.label(row.level), compact(row.first), compact(row.second), standing_in_words(study, row))


def standing_in_words(study: Study, row: FrontLevel) -> str:
    if row.standing != DOMINATED:
        return row.standing
    return f"{DOMINATED} by {list_in_words([study.label(level) for level in row.dominated_by])}"


def front_note(front: Front) -> str:
    """The rule in words, for a page."""
    return (
        "A level is dominated where another is better in one metric beyond the 95 % interval of their difference, "
        f"paired by seed, and in the other not worse by {front.margin:g} or more, by the lower end of that interval. "
        "Comparisons are not adjusted for their number. “Not told apart from it” is a level that the means alone put "
        "behind another."
    )


def front_finding(study: Study) -> str:
    """A sentence per front: the levels on it, and those that are dominated; empty where nothing was scored."""
    sentences = []
    for front in fronts_of(study):
        by_standing = {
            standing: [row for row in front.levels if row.standing == standing] for standing in (ON_FRONT, DOMINATED)
        }
        if not by_standing[ON_FRONT]:
            continue
        names = list_in_words([study.label(row.level) for row in by_standing[ON_FRONT]])
        sentence = f"{front_title(front)}, by their means: {names}"
        dominated = [f"{study.label(row.level)} is {standing_in_words(study, row)}" for row in by_standing[DOMINATED]]
        sentence += f"; beyond the intervals, {list_in_words(dominated)}" if dominated else "; no level is dominated"
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def front_markdown(study: Study) -> str:
    """The sections of `table.md`; empty when the study asks for no front."""
    sections = []
    for number, front in enumerate(fronts_of(study)):
        rows = [front_headings(front), ("---", "---:", "---:", "---")]
        rows += [front_cells(study, row) for row in front.levels]
        lines = list(map(markdown_row, rows))
        figure = f"Figure: `{front_file(number)}.svg`."
        sections.append(f"\n## {front_title(front)}\n\n{figure} {front_note(front)}\n\n" + "\n".join(lines) + "\n")
    return "".join(sections)


def front_file(number: int) -> str:
    """Name of a front's figure, without its ending; fronts are numbered from 0."""
    return "front" if number == 0 else f"front_{number + 1}"
