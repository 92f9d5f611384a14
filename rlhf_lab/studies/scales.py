"""Scales on which claims of direction are judged at every look: logarithms of amounts, logits of rates.

Differences of amounts such as KL, tokens and seconds are skewed, because the larger side also varies more, and so are
differences of rates near 0 or 1. A t test of skewed differences is wrong too often, and looking repeatedly makes it
worse. Margins stay in the metric's unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhf_lab.core.metrics import scale_of
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.inference import Comparison, min_sd, paired_difference
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs, seeds
from rlhf_lab.studies.replicates import errors_near_bounds, level_difference

SMALLEST_AMOUNT = 1e-3
"""Smallest amount on a logarithmic scale; smaller ones, and estimates of KL below 0, count as this one."""


@dataclass(frozen=True)
class ScaledPairs:
    """Pairs of runs of two levels on the scale of a metric, (N,) each.

    Attributes:
        a_N, b_N: values of the two sides.
        sd_N: lower bound on the standard deviation of each difference.
        seed_N: seed of each pair.
    """

    a_N: FloatArray
    b_N: FloatArray
    sd_N: FloatArray
    seed_N: np.ndarray


def scaled_pairs(study: Study, name: str, level: str, versus: str) -> ScaledPairs | None:
    """Return the pairs of two levels on the scale of a metric; None without a pair.

    The lower bound on the standard deviation (`min_sd`) is that of the metric's unit times the slope of the scale.
    """
    pairs = paired_jobs(study, name, level, versus)
    if not len(pairs):
        return None
    jobs = study.completed.set_index("index", drop=False)
    level_jobs, versus_jobs = jobs.loc[pairs["index_a"]], jobs.loc[pairs["index_b"]]
    a_N, a_sd_N = _scaled(level_jobs, name)
    b_N, b_sd_N = _scaled(versus_jobs, name)
    return ScaledPairs(a_N, b_N, np.hypot(a_sd_N, b_sd_N), seeds(level_jobs))


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
