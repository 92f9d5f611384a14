"""Inference of a study: means of levels and differences between them, over the study's seeds.

The tables, claims and conclusions of a study all use these numbers. If each seed is tested on separate prompts, a seed
is one independent value (`statistics/inference.py`). If all seeds use the same test prompts, seeds and prompts are
crossed (`statistics/crossed.py`). For a metric that is not a mean over prompts, the standard error that each run states
is then added.

Claims of direction are judged at every look on the scale of their metric: logarithms of amounts, logits of rates.
Differences of amounts such as KL, tokens and seconds are skewed, because the larger side also varies more, and so are
differences of rates near 0 or 1. A t test of skewed differences is wrong too often, and looking repeatedly makes it
worse. Margins stay in the metric's unit.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from rlhf_lab.core.metrics import bounds_of, scale_of
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.crossed import crossed_difference, crossed_mean
from rlhf_lab.statistics.inference import (
    LEVEL,
    Comparison,
    Estimate,
    clustered_mean,
    clustered_rate,
    min_sd,
    min_sd_of_outcomes,
    paired_difference,
    t_comparison,
)
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs, seeds

FLOOR = (
    "The standard deviation between seeds is taken to be at least a tenth of a run's own standard error (half of it "
    "near a rate of 0 or 1), and for outcomes of 0 and 1 at least that of a coin. Differences are assumed not to be "
    "strongly skewed"
)
RULE = f"Differences are judged by a paired t test over seeds. {FLOOR}"
"""Description of the test of a difference, for a page."""
RULE_SHARED = (
    "Differences are judged by a t test with seeds and test prompts crossed; for metrics that are not means over "
    f"prompts, the error that each run states is added. {FLOOR}"
)
"""Description of the test of a difference, for a page of a study that tests all seeds on the same prompts."""
OUTCOMES = re.compile(r"gold_fell$|gold_undecided$|in_time/|false/")
"""Metrics that are 0 or 1 in every run."""
LEANING = 5
"""Maximum factor on a run's standard error, reached if its interval is completely one-sided."""
SMALLEST_AMOUNT = 1e-3
"""Smallest amount on a logarithmic scale; smaller ones, and estimates of KL below 0, count as this one."""


def level_mean(study: Study, metric: str, level: str) -> Estimate:
    jobs = study.completed[study.completed["level"] == level]
    values_N, seed_N = jobs[metric].to_numpy(dtype=float), seeds(jobs)
    if OUTCOMES.match(metric):
        return clustered_rate(values_N, seed_N)
    lower_N = min_sd(values_N, errors_near_bounds(jobs, metric))
    tables = _prompt_tables(study, metric, [jobs])
    if tables is not None and len(set(seed_N)) == len(jobs):  # crossing needs one run per seed
        return crossed_mean(tables[0], min_sd_S=lower_N)
    mean = clustered_mean(values_N, seed_N, min_sd_N=lower_N)
    # Shared prompts make the runs dependent; without values by prompt, the error of one run is added.
    if study.replication.shares_prompts:
        return _add_prompt_error(mean, run_errors(jobs, metric))
    return mean


def level_difference(study: Study, metric: str, level: str, versus: str | None = None) -> Comparison | None:
    """Return the difference of a level from another (the baseline by default), paired by seed; None without a pair."""
    sides = _jobs_of_pairs(study, metric, level, versus)
    if sides is None:
        return None
    a_N, b_N = (jobs[metric].to_numpy(dtype=float) for jobs in sides)
    seed_N = seeds(sides[0])
    if OUTCOMES.match(metric):
        return within_rate_bounds(paired_difference(a_N, b_N, seed_N, min_sd_N=min_sd_of_outcomes(a_N, b_N)))
    lower_N = np.hypot(*(min_sd(jobs[metric], errors_near_bounds(jobs, metric)) for jobs in sides))
    tables = _prompt_tables(study, metric, sides)
    if tables is not None and len(set(seed_N)) == len(seed_N):  # crossing needs one pair of runs per seed
        return crossed_difference(*tables, min_sd_S=lower_N)
    comparison = paired_difference(a_N, b_N, seed_N, min_sd_N=lower_N)
    if not study.replication.shares_prompts:
        return comparison
    # Both sides are treated as tested on independent prompts, which is conservative.
    errors_N = np.hypot(*(run_errors(jobs, metric) for jobs in sides))
    return _add_prompt_error_to_difference(comparison, errors_N)


def _jobs_of_pairs(
    study: Study, metric: str, level: str, versus: str | None
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the jobs of two levels, row by row in pairs; None without a pair."""
    pairs = paired_jobs(study, metric, level, versus)
    jobs = study.completed.set_index("index", drop=False)
    return (jobs.loc[pairs["index_a"]], jobs.loc[pairs["index_b"]]) if len(pairs) else None


def shared_bound(study: Study, metric: str, level: str, versus: str | None = None) -> str:
    """Return "ceiling" or "floor" if all paired runs of two levels have the largest or smallest possible value.

    The metric then cannot show a difference, whether or not there is one. Empty otherwise.
    """
    pairs = paired_jobs(study, metric, level, versus)[["a", "b"]].dropna()
    low, high = (0.0, 1.0) if OUTCOMES.match(metric) else bounds_of(metric)
    if not len(pairs):
        return ""
    return "ceiling" if (pairs == high).all(axis=None) else "floor" if (pairs == low).all(axis=None) else ""


def run_errors(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """Return the standard error that each run states for its own value, (N,); NaN if it states none above 0."""
    half_N = (jobs[f"{metric}/high"] - jobs[f"{metric}/low"]).to_numpy(dtype=float) / 2
    samples_N = jobs[f"{metric}/n"].to_numpy(dtype=float)
    stated_N = np.isfinite(half_N) & (half_N > 0) & (samples_N > 1)
    quantile = float(stats.norm.ppf((1 + LEVEL) / 2))  # a 95 % interval is ±1.96 standard errors
    return np.where(stated_N, half_N / quantile, np.nan)


def errors_near_bounds(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """Return the errors of runs, (N,), that bound the standard deviation between runs.

    They are up to five times the stated errors if the stated interval is one-sided, so that `min_sd`, a tenth of them,
    is up to half a stated error. Intervals are one-sided near a rate of 0 or 1: [0, 0.06] for no success in 64 rows is
    completely one-sided. Three runs without a success say little about the next run. Without this bound, only 60 % of
    the intervals contained the mean if the rates were 0.005.
    """
    errors_N = run_errors(jobs, metric)
    arms_N2 = np.zeros((len(jobs), 2))  # (low − mean, high − mean); 0 if no error is stated
    stated_N = errors_N > 0  # False if the error is NaN
    for side, bound in enumerate(("low", "high")):
        arm_N = (jobs[f"{metric}/{bound}"] - jobs[metric]).to_numpy(dtype=float)
        arms_N2[stated_N, side] = arm_N[stated_N]
    # 1.0 avoids a division by 0 for runs without a stated error; their lean is 0.
    widths_N = np.where(stated_N, arms_N2[:, 1] - arms_N2[:, 0], 1.0)
    lean_N = np.abs(arms_N2.sum(axis=1)) / widths_N  # 0 for a symmetric interval, 1 for a one-sided one
    return errors_N * np.maximum(1.0, LEANING * lean_N)


def _prompt_tables(study: Study, metric: str, sides: Sequence[pd.DataFrame]) -> list[pd.DataFrame] | None:
    """Return the runs × prompts table of the jobs of each side.

    None unless all runs have the same prompts and the metric of every run is the mean over its prompts.
    """
    tables: list[pd.DataFrame] = []
    for jobs in sides:
        values = [study.prompts[index][metric] for index in jobs["index"] if metric in study.prompts.get(index, ())]
        # Crossing needs two runs, and values by prompt for each of them.
        if len(values) < 2 or len(values) < len(jobs):
            return None
        stated_N = jobs[metric].to_numpy(dtype=float)
        means_N = np.array([values_of_run.mean() for values_of_run in values])
        # If they differ, the column by prompt is another quantity that has the same name.
        if not np.allclose(stated_N, means_N, rtol=1e-3, atol=1e-3):
            return None
        prompts = tables[0].columns if tables else values[0].index
        if any(set(values_of_run.index) != set(prompts) for values_of_run in values):
            return None
        tables.append(pd.concat(values, axis=1).T[prompts])
    return tables if tables[0].shape[1] > 1 else None


def within_rate_bounds(comparison: Comparison) -> Comparison:
    """Limit the difference of two rates, and the detectable difference, to the possible range from −1 to 1."""
    gap = comparison.difference
    if gap.bounded:
        gap = gap.within(-1.0, 1.0)
    effect = comparison.minimum_detectable_effect
    detectable = effect if effect <= 1 else math.inf
    return dataclasses.replace(comparison, difference=gap, minimum_detectable_effect=detectable)


def _prompt_variance(errors_N: FloatArray) -> float:
    """Return the variance that shared prompts add to a mean over runs: that of one run, which more do not reduce."""
    stated_N = errors_N[~np.isnan(errors_N)]
    return float(np.square(stated_N).mean()) if stated_N.size else 0.0


def _add_prompt_error(mean: Estimate, errors_N: FloatArray) -> Estimate:
    if not mean.bounded:
        return mean
    quantile = float(stats.norm.ppf((1 + LEVEL) / 2))
    prompt_half = quantile * _prompt_variance(errors_N) ** 0.5
    half = math.hypot(mean.high - mean.mean, prompt_half)
    return dataclasses.replace(mean, low=mean.mean - half, high=mean.mean + half)


def _add_prompt_error_to_difference(comparison: Comparison, errors_N: FloatArray) -> Comparison:
    """Add the error of the shared prompts, as if the two sides had been tested on different prompts.

    Without values by prompt the correlation between the sides is unknown, so the result is conservative.
    """
    seed_variance = comparison.standard_error**2
    prompt_variance = _prompt_variance(errors_N)
    if not seed_variance > 0 or prompt_variance == 0:
        return comparison
    # Welch-Satterthwaite; there are many prompts, so their variance counts as known and has no term.
    freedom = comparison.freedom * (1 + prompt_variance / seed_variance) ** 2
    gap = comparison.difference
    return t_comparison(
        gap.mean,
        math.sqrt(seed_variance + prompt_variance),
        freedom,
        f"{comparison.test}, error of the shared prompts added",
        n=gap.n,
        clusters=gap.clusters,
        unscored=gap.unscored,
        fixed_error=math.sqrt(prompt_variance),
    )


@dataclass(frozen=True)
class ScaledPairs:
    """Values of paired runs on the scale of a metric, lower bounds on the sd of their differences, and seeds, (N,)."""

    a_N: FloatArray
    b_N: FloatArray
    sd_N: FloatArray
    seed_N: np.ndarray


def scaled_pairs(study: Study, name: str, level: str, versus: str) -> ScaledPairs | None:
    """Return the pairs of two levels on the scale of a metric; None without a pair.

    The lower bound on the standard deviation (`min_sd`) is that of the metric's unit times the slope of the scale.
    """
    sides = _jobs_of_pairs(study, name, level, versus)
    if sides is None:
        return None
    (a_N, a_sd_N), (b_N, b_sd_N) = (_scaled(jobs, name) for jobs in sides)
    return ScaledPairs(a_N, b_N, np.hypot(a_sd_N, b_sd_N), seeds(sides[0]))


def scaled_difference(study: Study, name: str, level: str, versus: str) -> Comparison | None:
    """Return the difference of two levels on the scale of a metric, paired by seed; None without a pair.

    A difference of logarithms is the logarithm of a ratio, and a difference of logits that of an odds ratio.
    """
    if scale_of(name) == "raw":
        return level_difference(study, name, level, versus)
    pairs = scaled_pairs(study, name, level, versus)
    return None if pairs is None else paired_difference(pairs.a_N, pairs.b_N, pairs.seed_N, min_sd_N=pairs.sd_N)


def _scaled(jobs: pd.DataFrame, name: str) -> tuple[FloatArray, FloatArray]:
    """Return the values of jobs on a metric's scale, and the lower bound on their standard deviation, both (N,)."""
    values_N = jobs[name].to_numpy(dtype=float)
    sd_N = min_sd(values_N, errors_near_bounds(jobs, name))
    scale = scale_of(name)
    if scale == "log":
        return log_scale(values_N, sd_N)
    return (
        logit_scale(values_N, sd_N, jobs[f"{name}/n"].to_numpy(dtype=float)) if scale == "logit" else (values_N, sd_N)
    )


def log_scale(values_N: FloatArray, sd_N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (log x, sd/x) of amounts x, which count as at least `SMALLEST_AMOUNT`; (N,) each."""
    values_N = np.maximum(values_N, SMALLEST_AMOUNT)  # NaN stays NaN
    return np.log(values_N), sd_N / values_N


def logit_scale(values_N: FloatArray, sd_N: FloatArray, rows_N: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the logits of rates and their standard deviations, (N,) each.

    A rate is k of n rows, moved inside (0, 1): p = (k + ½)/(n + 1), with slope n/(n + 1) · 1/(p(1 − p)). A rate without
    a number of rows counts as one of 1000.
    """
    rows_N = np.where(rows_N > 0, rows_N, 1000.0)
    inside_N = (values_N * rows_N + 0.5) / (rows_N + 1)
    slope_N = rows_N / (rows_N + 1) / (inside_N * (1 - inside_N))
    return np.log(inside_N / (1 - inside_N)), sd_N * slope_N
