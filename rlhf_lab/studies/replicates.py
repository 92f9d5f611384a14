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
"""How a difference is judged, in words for a page."""
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
    values_N, seed_N = jobs[metric].to_numpy(dtype=float), seeds(jobs)
    if OUTCOMES.match(metric):
        return clustered_rate(values_N, seed_N)
    least_N = least_sd(values_N, errors_near_bounds(jobs, metric))
    tables = _by_prompt(metric, [(study, jobs)])
    if tables is not None and len(set(seed_N)) == len(jobs):
        return crossed_mean(tables[0], least_sd_S=least_N)
    mean = clustered_mean(values_N, seed_N, least_sd_N=least_N)
    return _with_prompts(mean, run_errors(jobs, metric)) if study.replication.shares_prompts else mean


def jobs_difference(metric: str, a: Side, b: Side) -> Comparison:
    """Jobs of one side against their partners of the other, row by row, paired by the seeds of a."""
    sides = [jobs for _, jobs in (a, b)]
    (a_N, b_N), seed_N = (side[metric].to_numpy(dtype=float) for side in sides), seeds(sides[0])
    if OUTCOMES.match(metric):
        return _of_outcomes(paired_difference(a_N, b_N, seed_N, least_sd_N=least_sd_of_outcomes(a_N, b_N)))
    least_N = np.hypot(*(least_sd(side[metric], errors_near_bounds(side, metric)) for side in sides))
    tables = _by_prompt(metric, [a, b])
    if tables is not None and len(set(seed_N)) == len(seed_N):
        return crossed_difference(*tables, least_sd_S=least_N)
    found = paired_difference(a_N, b_N, seed_N, least_sd_N=least_N)
    if not (a[0].replication.shares_prompts or b[0].replication.shares_prompts):
        return found
    return _difference_with_prompts(found, np.hypot(*(run_errors(side, metric) for side in sides)))


def run_errors(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """The standard error that each run states of its own value, (N,); NaN where it states none, or none above 0."""
    half_N = (jobs[f"{metric}/high"] - jobs[f"{metric}/low"]).to_numpy(dtype=float) / 2
    stated_N = np.isfinite(half_N) & (half_N > 0) & (jobs[f"{metric}/n"].to_numpy(dtype=float) > 1)
    return np.where(stated_N, half_N / float(stats.norm.ppf((1 + LEVEL) / 2)), np.nan)


def errors_near_bounds(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """The errors of runs, (N,), that bound the spread between them: up to five times those stated, so that half of an
    error remains of `least_sd`'s tenth, as the stated interval leans to one side.

    It does near a rate of 0 or 1: [0, .06] of no success in 64 rows leans wholly. Three runs without a success say
    little of the next one, and without this the mean of rates of .005 was covered by .6 of its intervals.
    """
    errors_N = run_errors(jobs, metric)
    arms_N2 = np.zeros((len(jobs), 2))  # of intervals that state no error, too
    stated_N = errors_N > 0
    for side, bound in enumerate(("low", "high")):
        arm_N = (jobs[f"{metric}/{bound}"] - jobs[metric]).to_numpy(dtype=float)
        arms_N2[stated_N, side] = arm_N[stated_N]
    widths_N = np.where(stated_N, arms_N2[:, 1] - arms_N2[:, 0], 1.0)
    lean_N = np.abs(arms_N2.sum(axis=1)) / widths_N
    return errors_N * np.maximum(1.0, LEANING * lean_N)


def _by_prompt(metric: str, sides: Sequence[Side]) -> list[pd.DataFrame] | None:
    """Per side its runs × prompts; None unless all runs have the same prompts and the metric is their mean."""
    tables: list[pd.DataFrame] = []
    for study, jobs in sides:
        runs = [study.prompts[index][metric] for index in jobs["index"] if metric in study.prompts.get(index, ())]
        if len(runs) < 2 or len(runs) < len(jobs):
            return None
        stated_N, means_N = jobs[metric].to_numpy(dtype=float), np.array([run.mean() for run in runs])
        if not np.allclose(stated_N, means_N, rtol=1e-3, atol=1e-3):  # another number of the same name
            return None
        prompts = tables[0].columns if tables else runs[0].index
        if any(set(run.index) != set(prompts) for run in runs):
            return None
        tables.append(pd.concat(runs, axis=1).T[prompts])
    return tables if tables[0].shape[1] > 1 else None


def _of_outcomes(found: Comparison) -> Comparison:
    """A difference of two rates lies between −1 and 1, and so does one that could be found."""
    gap = found.difference
    inside = dataclasses.replace(gap, low=max(gap.low, -1.0), high=min(gap.high, 1.0)) if gap.bounded else gap
    effect = found.minimum_detectable_effect
    return dataclasses.replace(found, difference=inside, minimum_detectable_effect=effect if effect <= 1 else math.inf)


def _prompt_variance(errors_N: FloatArray) -> float:
    """Variance that shared prompts add to a mean over runs: that of one run, since it does not average out."""
    stated_N = errors_N[~np.isnan(errors_N)]
    return float(np.square(stated_N).mean()) if stated_N.size else 0.0


def _with_prompts(mean: Estimate, errors_N: FloatArray) -> Estimate:
    """The interval widened by the error of the shared prompts."""
    half = math.hypot(mean.high - mean.mean, float(stats.norm.ppf((1 + LEVEL) / 2)) * _prompt_variance(errors_N) ** 0.5)
    return dataclasses.replace(mean, low=mean.mean - half, high=mean.mean + half) if mean.bounded else mean


def _difference_with_prompts(found: Comparison, errors_N: FloatArray) -> Comparison:
    """The comparison with the error of the shared prompts added, as if the two sides had been tested on different ones.

    Without values by prompt nothing is known of how alike the sides are, so this errs on the wide side.
    """
    of_seeds, of_prompts = found.standard_error**2, _prompt_variance(errors_N)
    if not of_seeds > 0 or of_prompts == 0:
        return found
    gap = found.difference
    return t_comparison(
        gap.mean,
        math.sqrt(of_seeds + of_prompts),
        found.freedom * (1 + of_prompts / of_seeds) ** 2,  # prompts are many: no term of theirs
        f"{found.test}, error of the shared prompts added",
        n=gap.n,
        clusters=gap.clusters,
        unscored=gap.unscored,
        fixed_error=math.sqrt(of_prompts),
    )
