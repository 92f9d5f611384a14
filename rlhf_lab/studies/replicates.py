"""The inference of a study: means of levels and differences between them, over the study's seeds.

Tables, claims and findings of a study, and of two that are compared, take their numbers from here. Where each seed is
tested on prompts of its own, a seed is one independent value (`statistics.py`). Where all seeds share the test prompts,
seeds and prompts are crossed (`crossed.py`); a metric that is not a mean over prompts then adds the error that each run
states.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.crossed import crossed_difference, crossed_mean
from rlhf_lab.statistics.inference import (
    LEVEL,
    Comparison,
    Estimate,
    clustered_mean,
    clustered_rate,
    least_sd,
    least_sd_of_outcomes,
    paired_difference,
    t_comparison,
)
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs, seeds

FLOOR = (
    "The spread between seeds is not taken below a tenth of a run's own standard error (half of it near a rate of 0 or "
    "1), nor below that of a coin for outcomes of 0 and 1. Differences are taken not to be strongly skewed"
)
RULE = f"Differences are judged by a paired t test over seeds. {FLOOR}"
"""How a difference is tested, in words for a page."""
RULE_SHARED = (
    "Differences are judged by a t test with seeds and test prompts crossed; metrics that are no means over prompts "
    f"add the error that each run states. {FLOOR}"
)
"""The same where all seeds are tested on the same prompts."""
OUTCOMES = re.compile(r"hacked$|in_time/|false/")
"""Metrics that are 0 or 1 in every run."""
Side = tuple[Study, pd.DataFrame]
"""Completed jobs, and the study that they are of."""
LEANING = 5
"""How many errors one error counts for where an interval leans wholly to one side."""


def level_mean(study: Study, metric: str, level: str) -> Estimate:
    """Mean of a metric over the completed jobs of a level."""
    return jobs_mean(study, metric, study.completed[study.completed["level"] == level])


def level_difference(study: Study, metric: str, level: str, versus: str | None = None) -> Comparison | None:
    """A level against another, the baseline unless given, paired by seed; None where they share no seed."""
    pairs = paired_jobs(study, metric, level, versus)
    if not len(pairs):
        return None
    jobs = study.completed.set_index("index", drop=False)
    return jobs_difference(metric, (study, jobs.loc[pairs["index_a"]]), (study, jobs.loc[pairs["index_b"]]))


def jobs_mean(study: Study, metric: str, jobs: pd.DataFrame) -> Estimate:
    """Mean of a metric over completed jobs."""
    values_N = jobs[metric].to_numpy(dtype=float)
    seed_N = seeds(jobs)
    if OUTCOMES.match(metric):
        return clustered_rate(values_N, seed_N)
    least_N = least_sd(values_N, errors_near_bounds(jobs, metric))
    tables = _prompt_tables(metric, [(study, jobs)])
    if tables is not None and len(set(seed_N)) == len(jobs):  # crossing needs one run per seed
        return crossed_mean(tables[0], least_sd_S=least_N)
    mean = clustered_mean(values_N, seed_N, least_sd_N=least_N)
    if study.replication.shares_prompts:
        return _add_prompt_error(mean, run_errors(jobs, metric))
    return mean


def jobs_difference(metric: str, a: Side, b: Side) -> Comparison:
    """Jobs of one side against their partners of the other, row by row, paired by the seeds of a."""
    study_a, jobs_a = a
    study_b, jobs_b = b
    a_N = jobs_a[metric].to_numpy(dtype=float)
    b_N = jobs_b[metric].to_numpy(dtype=float)
    seed_N = seeds(jobs_a)
    if OUTCOMES.match(metric):
        comparison = paired_difference(a_N, b_N, seed_N, least_sd_N=least_sd_of_outcomes(a_N, b_N))
        return _within_rate_bounds(comparison)
    least_a_N = least_sd(jobs_a[metric], errors_near_bounds(jobs_a, metric))
    least_b_N = least_sd(jobs_b[metric], errors_near_bounds(jobs_b, metric))
    least_N = np.hypot(least_a_N, least_b_N)
    tables = _prompt_tables(metric, [a, b])
    if tables is not None and len(set(seed_N)) == len(seed_N):  # crossing needs one pair of runs per seed
        return crossed_difference(*tables, least_sd_S=least_N)
    comparison = paired_difference(a_N, b_N, seed_N, least_sd_N=least_N)
    if not (study_a.replication.shares_prompts or study_b.replication.shares_prompts):
        return comparison
    errors_N = np.hypot(run_errors(jobs_a, metric), run_errors(jobs_b, metric))
    return _add_prompt_error_to_difference(comparison, errors_N)


def run_errors(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """The standard error that each run states of its own value, (N,); NaN where it states none, or none above 0."""
    half_N = (jobs[f"{metric}/high"] - jobs[f"{metric}/low"]).to_numpy(dtype=float) / 2
    samples_N = jobs[f"{metric}/n"].to_numpy(dtype=float)
    stated_N = np.isfinite(half_N) & (half_N > 0) & (samples_N > 1)
    quantile = float(stats.norm.ppf((1 + LEVEL) / 2))  # of a 95 % interval: 1.96 errors
    return np.where(stated_N, half_N / quantile, np.nan)


def errors_near_bounds(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """The errors of runs, (N,), that bound the spread between them: up to five times those stated, so that half of an
    error remains of `least_sd`'s tenth, as the stated interval leans to one side.

    It does near a rate of 0 or 1: [0, .06] of no success in 64 rows leans wholly. Three runs without a success say
    little of the next one, and without this the mean of rates of .005 was covered by .6 of its intervals.
    """
    errors_N = run_errors(jobs, metric)
    arms_N2 = np.zeros((len(jobs), 2))  # (low − mean, high − mean); 0 where no error is stated
    stated_N = errors_N > 0  # False where the error is NaN
    for side, bound in enumerate(("low", "high")):
        arm_N = (jobs[f"{metric}/{bound}"] - jobs[metric]).to_numpy(dtype=float)
        arms_N2[stated_N, side] = arm_N[stated_N]
    widths_N = np.where(stated_N, arms_N2[:, 1] - arms_N2[:, 0], 1.0)
    lean_N = np.abs(arms_N2.sum(axis=1)) / widths_N
    return errors_N * np.maximum(1.0, LEANING * lean_N)


def _prompt_tables(metric: str, sides: Sequence[Side]) -> list[pd.DataFrame] | None:
    """Per side its runs × prompts; None unless all runs have the same prompts and the metric is their mean."""
    tables: list[pd.DataFrame] = []
    for study, jobs in sides:
        values = [study.prompts[index][metric] for index in jobs["index"] if metric in study.prompts.get(index, ())]
        if len(values) < 2 or len(values) < len(jobs):
            return None
        stated_N = jobs[metric].to_numpy(dtype=float)
        means_N = np.array([values_of_run.mean() for values_of_run in values])
        if not np.allclose(stated_N, means_N, rtol=1e-3, atol=1e-3):  # another number of the same name
            return None
        prompts = tables[0].columns if tables else values[0].index
        if any(set(values_of_run.index) != set(prompts) for values_of_run in values):
            return None
        tables.append(pd.concat(values, axis=1).T[prompts])
    return tables if tables[0].shape[1] > 1 else None


def _within_rate_bounds(comparison: Comparison) -> Comparison:
    """A difference of two rates lies between −1 and 1, and so does one that could be found."""
    gap = comparison.difference
    if gap.bounded:
        gap = dataclasses.replace(gap, low=max(gap.low, -1.0), high=min(gap.high, 1.0))
    effect = comparison.minimum_detectable_effect
    detectable = effect if effect <= 1 else math.inf
    return dataclasses.replace(comparison, difference=gap, minimum_detectable_effect=detectable)


def _prompt_variance(errors_N: FloatArray) -> float:
    """Variance that shared prompts add to a mean over runs: that of one run, since it does not average out."""
    stated_N = errors_N[~np.isnan(errors_N)]
    return float(np.square(stated_N).mean()) if stated_N.size else 0.0


def _add_prompt_error(mean: Estimate, errors_N: FloatArray) -> Estimate:
    """The interval widened by the error of the shared prompts."""
    if not mean.bounded:
        return mean
    prompt_half = float(stats.norm.ppf((1 + LEVEL) / 2)) * _prompt_variance(errors_N) ** 0.5
    half = math.hypot(mean.high - mean.mean, prompt_half)
    return dataclasses.replace(mean, low=mean.mean - half, high=mean.mean + half)


def _add_prompt_error_to_difference(comparison: Comparison, errors_N: FloatArray) -> Comparison:
    """The comparison with the error of the shared prompts added, as if the two sides had been tested on different ones.

    Without values by prompt nothing is known of how alike the sides are, so this errs on the wide side.
    """
    seed_variance = comparison.standard_error**2
    prompt_variance = _prompt_variance(errors_N)
    if not seed_variance > 0 or prompt_variance == 0:
        return comparison
    # Welch-Satterthwaite; the prompts are many, so their variance counts as known and has no term.
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
