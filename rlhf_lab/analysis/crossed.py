"""Numbers of repeated training on given data: every run answers the same prompts, so runs and prompts are crossed.

The value of run s on prompt p is taken as μ + run_s + prompt_p + rest_sp, all random. An interval over runs alone would
speak for these prompts only, and one over prompts alone for these runs; this one speaks for another training run on the
same data, tested on other prompts of the same kind. That is the design of multi-reader multi-case studies, whose
analysis this is (Hillis 2007, doi:10.1002/sim.2532). What another training corpus would change stays unknown.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlhf_lab.analysis.estimates import LEVEL, Comparison, Estimate
from rlhf_lab.analysis.statistics import minimum_detectable_effect
from rlhf_lab.errors import NumericError

TEST = "crossed random effects of runs and prompts (Hillis)"


def crossed_mean(values_SP: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Mean over S runs and P prompts, with an interval for other runs and other prompts.

    Args:
        values_SP: (S, P) value of each run on each prompt. A prompt that some run left unscored (NaN) is left out.
    """
    table_SP, unscored = _complete(values_SP)
    error, freedom = _error(table_SP)
    runs, prompts = table_SP.shape
    mean = float(table_SP.mean()) if table_SP.size else math.nan
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * error if math.isfinite(error) else math.inf
    return Estimate(mean, mean - half, mean + half, runs * prompts, min(runs, runs * prompts), level, unscored)


def crossed_difference(a_SP: ArrayLike, b_SP: ArrayLike, *, level: float = LEVEL) -> Comparison:
    """Compare a with b, run s of one with run s of the other on the same prompts: mean of a − b and a t test of it.

    Args:
        a_SP, b_SP: (S, P) values of the two sides; see `crossed_mean`.
    """
    a_SP, b_SP = np.asarray(a_SP, dtype=float), np.asarray(b_SP, dtype=float)
    if a_SP.shape != b_SP.shape:
        raise NumericError(f"a crossed comparison needs the same runs and prompts, not {a_SP.shape} and {b_SP.shape}")
    table_SP, _ = _complete(a_SP - b_SP)
    estimate = crossed_mean(a_SP - b_SP, level=level)
    error, freedom = _error(table_SP)
    if not math.isfinite(error):
        return Comparison(estimate, math.nan, math.inf, "none: fewer than 2 runs or prompts")
    if error == 0:
        return Comparison(estimate, float(estimate.mean == 0), 0.0, TEST)
    p_value = float(2 * stats.t.sf(abs(estimate.mean) / error, freedom))
    # a t test on ν + 1 differences has the same standard error and degrees of freedom
    effect = minimum_detectable_effect(error * math.sqrt(freedom + 1), freedom + 1, alpha=1 - level)
    return Comparison(estimate, p_value, effect, TEST, standard_error=error, freedom=freedom)


def _error(table_SP: np.ndarray) -> tuple[float, float]:
    """Standard error of the mean of a complete table, and its degrees of freedom.

    With the mean squares of runs, prompts and the rest of a two-way table,
        V = (MS_runs + max(MS_prompts − MS_rest, 0)) / (S·P)
        1/ν = w/(S−1) + (1−w)/(P−1),   w = MS_runs / (MS_runs + max(MS_prompts − MS_rest, 0))

    Satterthwaite's ν has w² and (1−w)² there. Over three runs it is large just when the runs lie close together by
    chance, and the interval covers .92; this one covers .94 to .97 (docs/results/coverage.md).
    """
    runs, prompts = table_SP.shape
    if runs < 2 or prompts < 2:
        return math.inf, math.nan
    mean = table_SP.mean()
    run_S, prompt_P = table_SP.mean(axis=1), table_SP.mean(axis=0)
    rest_SP = table_SP - run_S[:, None] - prompt_P[None, :] + mean
    of_runs = prompts * np.square(run_S - mean).sum() / (runs - 1)
    of_prompts = runs * np.square(prompt_P - mean).sum() / (prompts - 1)
    of_rest = np.square(rest_SP).sum() / ((runs - 1) * (prompts - 1))
    above = max(of_prompts - of_rest, 0.0)
    total = of_runs + above
    if total == 0:
        return 0.0, float(runs - 1)
    freedom = total / (of_runs / (runs - 1) + above / (prompts - 1))
    return float(math.sqrt(total / (runs * prompts))), float(freedom)


def _complete(values_SP: ArrayLike) -> tuple[np.ndarray, int]:
    """The columns that every run scored, and how many values are left out."""
    table_SP = np.asarray(values_SP, dtype=float)
    if table_SP.ndim != 2:
        raise NumericError(f"a table of runs × prompts is needed, not one of {table_SP.ndim} dimensions")
    scored_P = ~np.isnan(table_SP).any(axis=0)
    return table_SP[:, scored_P], int((~scored_P).sum() * table_SP.shape[0])
