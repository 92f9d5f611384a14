"""Claims of a study that one metric of its jobs goes together with another, judged by rank correlations.

A unit is one combination of the swept settings other than the seed; its numbers are means over its seeds. Ranks are
taken within each value of the study's `by`, so that a correlation does not come from differences between its values.
The claimed size is `MINIMUM`. A claim is registered when the study first runs, and seeds that were
seen before do not count for it (`registration.py`). Correlations are not part of the family of the study's `predicts`,
and their intervals are not adjusted for their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rlhf_lab.config.overrides import level_name
from rlhf_lab.results.wording import compact, markdown_section, metric_phrase, metric_title
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.rank_correlation import MIN_UNITS, CorrelationDifference, compare_predictors, rank_correlation
from rlhf_lab.studies.claims import AFTER_LOOK, CONFIRMED, REFUTED, UNCLEAR, UNTESTED, seen_seeds, without_seeds
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.registration import MINIMUM, MINIMUM_LOW
from rlhf_lab.studies.verdict import after_look_sentence, excluded_seeds, setting_for_other_seeds

HEADINGS = ("claim", "here", "units", "correlation", "each panel")


@dataclass(frozen=True)
class CorrelationVerdict:
    """One claim on a correlation with its verdict.

    Attributes:
        metric, outcome: the two metrics.
        claim, sentence: the claim, and the verdict with its numbers, in words.
        pooled: Spearman's ρ within panels.
        panels: label of each panel → its ρ; empty without `by`.
        rival: the comparison with the other predictor; None if the claim has none.
        seen: seeds that do not count, because they were seen when the claim was registered.
        notes: what a claim without a verdict needs; empty for others.
    """

    metric: str
    outcome: str
    claim: str
    verdict: str
    sentence: str
    pooled: Estimate
    panels: Mapping[str, Estimate]
    rival: CorrelationDifference | None = None
    seen: tuple[int, ...] = ()
    notes: str = ""


def correlations_of(study: Study) -> list[CorrelationVerdict]:
    return [_judge(study, claim) for claim in study.correlations]


def units_of(study: Study, metrics: list[str]) -> pd.DataFrame:
    """Return one row per unit: its panel and the mean of each metric over the completed seeds."""
    completed = study.completed
    factors = [factor for factor in study.factors if factor != "seed"]
    # a loop over rows, because pandas cannot join the columns of a frame without rows
    names = [" ".join(map(level_name, row)) for row in completed[factors or ["index"]].itertuples(index=False)]
    unit = pd.Series(names, index=completed.index, dtype=object)
    panel = completed[study.by].map(level_name) if study.by in study.factors else pd.Series("", index=completed.index)
    table = completed[metrics].assign(unit=unit, panel=panel)
    # mean() ignores seeds without a value; a unit without any stays NaN and is left out later
    return table.groupby(["panel", "unit"], sort=False).mean().reset_index()


def _judge(study: Study, claim: Mapping[str, Any]) -> CorrelationVerdict:
    metric, outcome, rival = claim["metric"], claim["outcome"], claim.get("stronger_than")
    seen = seen_seeds(study, claim)
    units = units_of(without_seeds(study, seen), [metric, outcome, *([rival] if rival else [])])
    pooled = rank_correlation(units[metric], units[outcome], units["panel"])
    panels = {}
    if study.by in study.factors:
        for value, rows in units.groupby("panel", sort=False):
            panels[study.panel_label(str(value))] = rank_correlation(rows[metric], rows[outcome], rows["panel"])
    difference = compare_predictors(units[metric], units[rival], units[outcome], units["panel"]) if rival else None
    verdict = decide(claim, pooled, list(panels.values()), difference)
    words = correlation_in_words(claim)
    if verdict == UNTESTED and seen:
        sentence = after_look_sentence(study, claim, words)
        notes = f"other seeds test it: `{setting_for_other_seeds(study)}`"
        return CorrelationVerdict(metric, outcome, words, AFTER_LOOK, sentence, pooled, panels, difference, seen, notes)
    sentence = _sentence(words, verdict, pooled, panels, difference, excluded_seeds(study, claim))
    return CorrelationVerdict(metric, outcome, words, verdict, sentence, pooled, panels, difference, seen)


def decide(
    claim: Mapping[str, Any], pooled: Estimate, panels: list[Estimate], difference: CorrelationDifference | None = None
) -> str:
    """Return the verdict on a claim.

    Confirmed: the pooled correlation and that of every panel have the claimed sign and at least the size `MINIMUM`, the
    interval of the pooled one lies beyond `MINIMUM_LOW`, and that of the difference from a rival lies above 0. Not
    confirmed: the interval of the pooled correlation ends below `MINIMUM`, or that of the difference below 0.
    """
    sign = -1 if claim["direction"] == "negative" else 1
    # an estimate is NaN if too few units have both metrics
    if math.isnan(pooled.mean) or (difference is not None and math.isnan(difference.difference.mean)):
        return UNTESTED
    weak_end, strong_end = sorted((sign * pooled.low, sign * pooled.high))
    gap = difference.difference if difference is not None else None
    if strong_end < MINIMUM or (gap is not None and gap.high < 0):
        return REFUTED
    sizes = [sign * estimate.mean for estimate in (pooled, *panels)]
    is_strong = all(size >= MINIMUM for size in sizes) and weak_end > MINIMUM_LOW
    return CONFIRMED if is_strong and (gap is None or gap.low > 0) else UNCLEAR


def correlation_in_words(claim: Mapping[str, Any]) -> str:
    """Return a claim in words, for example "attack gain and gold lost are correlated by −0.7 or more"."""
    sign = "−" if claim["direction"] == "negative" else "+"
    words = (
        f"{metric_phrase(claim['metric'])} has a rank correlation of {sign}{MINIMUM:g} or stronger with "
        f"{metric_phrase(claim['outcome'])}"
    )
    if claim.get("stronger_than"):
        words += f", stronger than that of {metric_phrase(claim['stronger_than'])}"
    return words


def _sentence(
    words: str,
    verdict: str,
    pooled: Estimate,
    panels: Mapping[str, Estimate],
    rival: CorrelationDifference | None,
    notes: str,
) -> str:
    if verdict == UNTESTED:
        needed = f"fewer than {MIN_UNITS} settings have all metrics"
        return f"Not tested, because {needed} or a metric does not vary: {words}."
    start = {CONFIRMED: "Confirmed", REFUTED: "Not confirmed", UNCLEAR: "Undecided"}[verdict]
    numbers = f"ρ = {compact(pooled)} over {pooled.n} settings"
    if panels:
        numbers += f" ({', '.join(f'{label} {compact(rho)}' for label, rho in panels.items())})"
    if rival is not None:
        numbers += f"; |ρ| − |ρ| of the other {compact(rival.difference)}"
    return f"{start}: {words}: {numbers}{notes}."


def correlation_cells(verdict: CorrelationVerdict) -> tuple[str, ...]:
    if verdict.verdict == AFTER_LOOK:
        return (verdict.claim, verdict.verdict, "0", verdict.notes, "")
    panels = "; ".join(f"{label}: {compact(rho)}" for label, rho in verdict.panels.items())
    return (verdict.claim, verdict.verdict, str(verdict.pooled.n), compact(verdict.pooled), panels)


def correlation_title(verdict: CorrelationVerdict) -> str:
    return f"{metric_title(verdict.metric)} and {metric_title(verdict.outcome)}"


NOTE = (
    "Spearman's rank correlation over settings (means over seeds), within the panels of the study. Intervals are 95 % "
    "percentiles over resampled settings and are not adjusted for the number of claims. A claim is confirmed if the "
    "pooled correlation and that of every panel reach the stated bar, and the interval of the pooled one stays beyond "
    "the lower bar."
)


def correlation_markdown(study: Study) -> str:
    rows = map(correlation_cells, correlations_of(study))
    return markdown_section("Correlations over settings", NOTE, HEADINGS, rows, "llrrl")
