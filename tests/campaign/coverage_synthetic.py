"""Coverage on synthetic numbers with dialled variances: seeds × prompts, and rates of few rows over few runs."""

from __future__ import annotations

import memory_study
import numpy as np
from covering import BAR_WORDS, SEEDS, Table, Tally, inside, span
from judging import compare, errors_of_rates, wilson_bounds

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.crossed import crossed_mean
from rlhf_lab.studies.replicates import level_mean

SPREADS = {
    "runs, prompts and rest alike": (0.1, 1.0, 1.0),
    "runs alike": (0.0, 1.0, 1.0),
    "prompts alike": (0.1, 0.0, 1.0),
    "prompts decide": (0.01, 1.0, 0.1),
    "runs decide": (1.0, 1.0, 1.0),
}
"""Case → standard deviations of runs, prompts and the rest."""
FEW = 10
PROMPTS = (30, 128, 500)
RATES = (0.005, 0.02, 0.1, 0.5, 0.9)
ROWS = (64, 512)
BETWEEN = {"chance alone": 0.0, "chance and runs": 0.01}
"""Difference between runs → correlation of two rows of a run (beta-binomial)."""


def crossed_normal(studies: int) -> Table:
    """Normal runs × prompts; the difference of two levels is such a table too."""
    tally = Tally()
    rng = np.random.default_rng(3)
    for case, (of_run, of_prompt, of_rest) in SPREADS.items():
        for prompts in PROMPTS:
            for count in SEEDS:
                for _ in range(studies):
                    runs_S, prompts_P = rng.normal(0, of_run, count), rng.normal(0, of_prompt, prompts)
                    values_SP = runs_S[:, None] + prompts_P + rng.normal(0, of_rest, (count, prompts))
                    tally.add((case, f"{prompts} {count}"), crossed_mean(values_SP), 0.0)
    columns = [f"{prompts} {count}" for prompts in PROMPTS for count in SEEDS]
    rates = [tally.coverage((case, column)) for case in SPREADS for column in columns]
    return Table(
        name="Seeds × prompts, normal",
        about=(
            "Value = run + prompt + rest, all normal with the standard deviations named; "
            f"{studies} tables per cell. Differences of two levels are tables of this kind."
        ),
        header=("what varies", "sd", *(f"{prompts} prompts, {n} seeds" for prompts in PROMPTS for n in SEEDS)),
        rows=tuple(
            (case, ", ".join(f"{sd:g}" for sd in spread), *(tally.cell((case, column)) for column in columns))
            for case, spread in SPREADS.items()
        ),
        labels=2,
        is_coverage=True,
        findings=(f"Normal runs × prompts with dialled variances: {span(rates)} ({inside(rates)} in {BAR_WORDS}).",),
    )


def few_rates(studies: int) -> Table:
    """A rate over few runs of few rows: the mean of a level, and the difference of two levels with the same rate."""
    tally = Tally()
    rng = np.random.default_rng(4)
    keys = [(rate, between, rows) for rate in RATES for between in BETWEEN for rows in ROWS]
    for rate, between, rows in keys:
        for count in SEEDS:
            key = (str(rate), between, str(rows), str(count))
            for _ in range(studies):
                values_LSM4 = _draw(rng, rate, BETWEEN[between], rows, count)
                study = memory_study.build(values_LSM4, ("accuracy",), (0, 1), memory_study.REDRAWN)
                tally.add((*key, "mean"), level_mean(study, "accuracy", "0"), rate)
                tally.add((*key, "mean"), level_mean(study, "accuracy", "1"), rate)
                rates_LS = values_LSM4[:, :, 0, 0]
                errors_LS = errors_of_rates(rates_LS, rows)
                comparison = compare(rates_LS[1], rates_LS[0], errors_LS[1], errors_LS[0])
                tally.add((*key, "difference"), comparison.difference, 0.0)
    names = [(str(rate), between, str(rows)) for rate, between, rows in keys]
    what = ("mean", "difference")
    differences = [tally.coverage((*name, str(n), "difference")) for name in names for n in SEEDS]
    ordinary, few = (
        [
            tally.coverage((*name, str(n), "mean"))
            for name in names
            for n in SEEDS
            if (float(name[0]) * int(name[2]) * n >= FEW) == enough
        ]
        for enough in (True, False)
    )
    return Table(
        name="Rates over few runs",
        about=(
            "Every run counts successes among its rows, binomial, or beta-binomial with correlation "
            f"{max(BETWEEN.values())} between the rows of a run; both levels have the same rate. {2 * studies} "
            f"means and {studies} differences per cell."
        ),
        header=("rate", "runs differ by", "rows per run", *(f"{kind}, {n} seeds" for kind in what for n in SEEDS)),
        rows=tuple((*name, *(tally.cell((*name, str(n), kind)) for kind in what for n in SEEDS)) for name in names),
        labels=3,
        is_coverage=True,
        findings=(
            f"Rates over few runs: where at least {FEW} successes are expected over all runs, intervals of means hold "
            f"the rate in {span(ordinary)} of studies ({inside(ordinary)} in {BAR_WORDS}); with fewer, in {span(few)}. "
            f"Differences: {span(differences)} ({inside(differences)} in {BAR_WORDS}).",
        ),
    )


def _draw(rng: np.random.Generator, rate: float, correlation: float, rows: int, count: int) -> FloatArray:
    """(2 levels, seeds, 1 metric, 4): rates of runs with their Wilson bounds."""
    rates_LS = np.full((2, count), rate)
    if correlation:
        size = 1 / correlation - 1
        rates_LS = rng.beta(rate * size, (1 - rate) * size, size=(2, count))
    observed_LS = rng.binomial(rows, rates_LS) / rows
    low_LS, high_LS = wilson_bounds(observed_LS, rows)
    return np.stack([observed_LS, low_LS, high_LS, np.full((2, count), float(rows))], axis=-1)[:, :, None, :]
