"""The inference of a study: means of levels and differences between them, over the study's seeds.

Every table, figure, claim and sentence about a study takes its numbers from here. Where each seed is tested on prompts
of its own, a seed is one independent value (`statistics.py`). Where all seeds share the test prompts, seeds and prompts
are crossed (`crossed.py`); a metric that is not a mean over prompts then adds the error that each run states.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
from scipy import stats

from rlhf_lab.analysis.crossed import crossed_difference, crossed_mean
from rlhf_lab.analysis.statistics import (
    LEVEL,
    Comparison,
    Estimate,
    are_outcomes,
    clustered_mean,
    clustered_rate,
    least_sd,
    least_sd_of_differences,
    minimum_detectable_effect,
    paired_difference,
)
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs, seeds
from rlhf_lab.types import FloatArray

RULE = (
    "Paired t test over seeds; the spread between seeds is not taken below a tenth of a run's own standard error (half "
    "of it near a rate of 0 or 1), nor below that of a coin for outcomes of 0 and 1"
)
"""How a difference is judged, in words for a page."""
LEANING = 5
"""How many errors one error counts for where an interval leans wholly to one side."""


def level_mean(study: Study, metric: str, level: str) -> Estimate:
    """Mean of a metric over the completed jobs of a level."""
    jobs = study.completed[study.completed["level"] == level]
    values_N, errors_N = jobs[metric].to_numpy(dtype=float), run_errors(jobs, metric)
    table = _by_prompt(study, metric, jobs["index"])
    if table is not None and jobs_are_seeds(jobs):
        return crossed_mean(table)
    if are_outcomes(values_N, errors_N):
        return clustered_rate(values_N, seeds(jobs))
    least_N = least_sd(values_N, errors_near_bounds(jobs, metric))
    mean = clustered_mean(values_N, seeds(jobs), least_sd_N=least_N)
    return _with_prompts(mean, errors_N) if study.replication.shares_prompts else mean


def level_difference(study: Study, metric: str, level: str, versus: str | None = None) -> Comparison | None:
    """A level against another, the baseline unless given, paired by seed; None where they share no seed."""
    pairs = paired_jobs(study, metric, level, versus)
    if not len(pairs):
        return None
    tables = [_by_prompt(study, metric, pairs[side]) for side in ("index_a", "index_b")]
    if tables[0] is not None and tables[1] is not None and pairs["seed"].is_unique:
        shared = tables[0].columns.intersection(tables[1].columns)
        return crossed_difference(tables[0][shared], tables[1][shared])
    jobs = study.completed.set_index("index")
    sides = [jobs.loc[pairs[side]] for side in ("index_a", "index_b")]
    least_N = least_sd_of_differences(pairs["a"], pairs["b"], *(errors_near_bounds(side, metric) for side in sides))
    found = paired_difference(pairs["a"], pairs["b"], pairs["seed"], least_sd_N=least_N)
    if not study.replication.shares_prompts:
        return found
    return _difference_with_prompts(found, np.hypot(*(run_errors(side, metric) for side in sides)))


def run_errors(jobs: pd.DataFrame, metric: str) -> FloatArray:
    """The standard error that each run states of its own value, (N,); NaN where it states none."""
    half_N = (jobs[f"{metric}/high"] - jobs[f"{metric}/low"]).to_numpy(dtype=float) / 2
    stated_N = np.isfinite(half_N) & (jobs[f"{metric}/n"].to_numpy(dtype=float) > 1)
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


def jobs_are_seeds(jobs: pd.DataFrame) -> bool:
    """Whether each job is a seed of its own."""
    return bool(len(set(seeds(jobs))) == len(jobs))


def _by_prompt(study: Study, metric: str, indices: pd.Series) -> pd.DataFrame | None:
    """Runs × shared prompts; None where prompts are not shared or the metric is not one of single replies."""
    rows = [study.prompts[index][metric] for index in indices if metric in study.prompts.get(index, ())]
    if len(rows) < 2 or len(rows) < len(indices):
        return None
    table = pd.concat(rows, axis=1, join="inner").T
    return table if table.shape[1] > 1 else None


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
    error = math.sqrt(of_seeds + of_prompts)
    freedom = (of_seeds + of_prompts) ** 2 / (of_seeds**2 / found.freedom)  # prompts are many: no term of theirs
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    gap = found.difference.mean
    return Comparison(
        dataclasses.replace(found.difference, low=gap - half, high=gap + half),
        float(2 * stats.t.sf(abs(gap) / error, freedom)),
        minimum_detectable_effect(error * math.sqrt(freedom + 1), freedom + 1),
        f"{found.test}, error of the shared prompts added",
        standard_error=error,
        freedom=freedom,
    )
