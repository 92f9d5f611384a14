"""Verdicts that are wrong, and verdicts that are missed: type I error of families of claims, and power.

The claims of a family compare three levels with one baseline in two metrics, so they share the baseline's runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from covering import SEEDS, Table, claims, error_of_share, share, span
from judging import compare, errors_of_rates

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.inference import Comparison, holm
from rlhf_lab.studies.verdict import CONFIRMED, REFUTED, UNCLEAR, claim_p, decide

FAMILIES = (1, 3, 6)
CELLS = tuple(f"{claims(size)}, {n} seeds" for size in FAMILIES for n in SEEDS)
LEVELS, METRICS = 3, 2
MARGIN = 1.0
EFFECTS = (1.0, 2.0, 3.0)
HIGHER: Mapping[str, Any] = {"direction": "higher"}
SAME: Mapping[str, Any] = {"direction": "same", "margin": MARGIN}
Draw = Callable[[np.random.Generator, int], tuple[FloatArray, FloatArray]]
"""(random numbers, seeds) → values of a study and the errors that bound their spread, each (levels + 1, metrics,
seeds). The first level is the baseline; an error of NaN is not stated."""


def family(values: FloatArray, errors: FloatArray) -> list[Comparison]:
    """Every level against the baseline: all levels of the first metric, then those of the second."""
    return [
        compare(values[level, metric], values[0, metric], errors[level, metric], errors[0, metric])
        for metric in range(METRICS)
        for level in range(1, LEVELS + 1)
    ]


def decisions(comparisons: Sequence[Comparison], claim: Mapping[str, Any]) -> list[str]:
    """The verdicts on one family of equal claims, as `verdict.verdicts` decides them."""
    adjusted = holm([claim_p(claim, comparison) for comparison in comparisons])
    return [decide(claim, comparison, p) for comparison, p in zip(comparisons, adjusted, strict=True)]


def shape(seeds: int) -> tuple[int, int, int]:
    return LEVELS + 1, METRICS, seeds


def paired(rng: np.random.Generator, noise: FloatArray) -> FloatArray:
    """Values that share an effect of their seed."""
    return 5 + rng.normal(size=(1, *noise.shape[1:])) + noise


def without_errors(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    return values, np.full(values.shape, np.nan)


def normal(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
    return without_errors(paired(rng, rng.normal(size=shape(seeds))))


def exponential(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
    return without_errors(paired(rng, rng.exponential(size=shape(seeds))))


def skewed(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
    noise = rng.exponential(size=shape(seeds)) - 1
    noise[0] = rng.normal(0, 0.1, size=noise[0].shape)
    return without_errors(paired(rng, noise))


def outcomes(rate: float) -> Draw:
    def draw(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
        return without_errors((rng.random(shape(seeds)) < rate).astype(float))

    return draw


def nearly_fixed(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
    values = 5 + rng.normal(0, 1e-6, size=shape(seeds))
    return values, np.full(values.shape, 0.1)


def rates(rate: float, rows: int) -> Draw:
    def draw(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
        values = rng.binomial(rows, rate, size=shape(seeds)) / rows
        return values, errors_of_rates(values, rows)

    return draw


NO_DIFFERENCE: dict[str, Draw] = {
    "normal": normal,
    "exponential in all levels (heavy tails)": exponential,
    "exponential in one side alone (skewed)": skewed,
    "outcomes 0 or 1, rate .5": outcomes(0.5),
    "outcomes 0 or 1, rate .1": outcomes(0.1),
    "fixed to 1e-6, run error .1": nearly_fixed,
    "rates .1 of 128 rows": rates(0.1, 128),
    "rates .02 of 64 rows": rates(0.02, 64),
}


def shifted(draw: Draw, shift: float) -> Draw:
    """The same with every level this much above the baseline."""

    def moved(rng: np.random.Generator, seeds: int) -> tuple[FloatArray, FloatArray]:
        values, errors = draw(rng, seeds)
        return np.concatenate([values[:1], values[1:] + shift]), errors

    return moved


def difference_errors(studies: int) -> Table:
    """Claims of a difference where there is none: how often a family has a verdict at all."""
    rng = np.random.default_rng(5)
    rows, wrong_rates = [], {}
    for name, draw in NO_DIFFERENCE.items():
        wrong = {(count, size): 0 for count in SEEDS for size in FAMILIES}
        for count in SEEDS:
            for _ in range(studies):
                comparisons = family(*draw(rng, count))
                for size in FAMILIES:
                    verdicts = decisions(comparisons[:size], HIGHER)
                    wrong[count, size] += any(verdict != UNCLEAR for verdict in verdicts)
        wrong_rates[name] = {key: number / studies for key, number in wrong.items()}
        rows.append((name, *(share(wrong_rates[name][count, size]) for size in FAMILIES for count in SEEDS)))
    symmetric = [rate for name, found in wrong_rates.items() if "skewed" not in name for rate in found.values()]
    skew = [rate for name, found in wrong_rates.items() if "skewed" in name for rate in found.values()]
    return Table(
        name="Claims of a difference where there is none",
        about=(
            "Share of studies in which some claim of the family is decided, either way, after Holm. Values share an "
            f"effect of their seed. {studies} studies per cell (standard error {share(error_of_share(0.05, studies))} "
            "at .05)."
        ),
        header=("values", *CELLS),
        rows=tuple(rows),
        findings=(
            f"Where there is no difference, families of 1, 3 and 6 claims decide something in {span(symmetric)} of "
            f"studies; where one side alone is strongly skewed, in {span(skew)}, as any t test of few values.",
        ),
    )


def sameness_errors(studies: int) -> Table:
    """Claims of sameness where the true difference is the margin: confirmed and refuted are both wrong there."""
    rng = np.random.default_rng(6)
    at_margin = {
        "normal, sd of differences 1.4": shifted(normal, MARGIN),
        "normal, sd of differences .35": lambda r, n: without_errors(
            np.array([0.0, *[MARGIN] * LEVELS])[:, None, None] + r.normal(0, 0.25, size=shape(n))
        ),
        "exponential in one side alone (skewed)": shifted(skewed, MARGIN),
        "fixed to 1e-6, run error .1": shifted(nearly_fixed, MARGIN),
    }
    rows, found_rates = [], {CONFIRMED: [], REFUTED: []}
    for name, draw in at_margin.items():
        number = {(what, count, size): 0 for what in (CONFIRMED, REFUTED) for count in SEEDS for size in FAMILIES}
        for count in SEEDS:
            for _ in range(studies):
                comparisons = family(*draw(rng, count))
                for size in FAMILIES:
                    verdicts = decisions(comparisons[:size], SAME)
                    for what in (CONFIRMED, REFUTED):
                        number[what, count, size] += what in verdicts
        for what in (CONFIRMED, REFUTED):
            found = [number[what, count, size] / studies for size in FAMILIES for count in SEEDS]
            if "skewed" not in name:
                found_rates[what] += found
            rows.append((name, what, *map(share, found)))
    return Table(
        name="Claims of sameness at the margin",
        about=(
            "Share of studies in which some claim of sameness is confirmed, or not confirmed because the difference is "
            "found to be larger, after Holm, when every true difference is exactly the margin. The first is the error "
            f"of a claim of sameness (at most .05), the second that of its opposite (.025 by its two sides). {studies} "
            "studies per cell."
        ),
        header=("values", "verdict", *CELLS),
        rows=tuple(rows),
        labels=2,
        findings=(
            f"With a true difference exactly at the margin, sameness is confirmed in {span(found_rates[CONFIRMED])} "
            f"and its opposite found in {span(found_rates[REFUTED])} of studies.",
        ),
    )


def power(studies: int) -> Table:
    """Return the power: the frequency with which true claims are confirmed."""
    rng = np.random.default_rng(7)
    rows = []
    alone: dict[tuple[float, int], float] = {}
    for effect in EFFECTS:
        cells = {}
        for count in SEEDS:
            hits = dict.fromkeys(FAMILIES, 0)
            for _ in range(studies):
                values = rng.normal(0, 0.5**0.5, size=shape(count))  # differences have a standard deviation of 1
                values[1:] += effect
                comparisons = family(*without_errors(values))
                for size in FAMILIES:
                    hits[size] += decisions(comparisons[:size], HIGHER).count(CONFIRMED)
            cells |= {(size, count): hits[size] / studies / size for size in FAMILIES}
            alone[effect, count] = cells[1, count]
        rows.append((f"{effect:g} sd", *(share(cells[size, count]) for size in FAMILIES for count in SEEDS)))
    return Table(
        name="Power",
        about=(
            "Share of claims of a difference that are confirmed when all of the family are true; the size of the "
            f"difference in standard deviations of paired differences. {studies} studies per cell."
        ),
        header=("true difference", *CELLS),
        rows=tuple(rows),
        findings=(
            "A single claim of a difference of 1, 2 or 3 standard deviations is confirmed in "
            + "; ".join(
                f"{', '.join(share(alone[effect, count]) for effect in EFFECTS)} of studies with {count} seeds"
                for count in SEEDS
            )
            + ".",
        ),
    )
