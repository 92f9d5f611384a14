"""Numbers of repeated training on given data: every run answers the same prompts, so runs and prompts are crossed.

The value of run s on prompt p is taken as μ + run_s + prompt_p + rest_sp, all random. An interval over runs alone would
speak for these prompts only, and one over prompts alone for these runs; this one speaks for another training run on the
same data, tested on other prompts of the same kind. That is the design of multi-reader multi-case studies, and the
variance is theirs (Hillis 2007, doi:10.1002/sim.2532). What another training corpus would change stays unknown.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.estimates import LEVEL, Comparison, Estimate, floats
from rlhf_lab.statistics.inference import t_comparison

TEST = "t test of crossed random effects, runs and prompts"


def crossed_mean(values_SP: ArrayLike, *, least_sd_S: ArrayLike | None = None, level: float = LEVEL) -> Estimate:
    """Mean over S runs and P prompts, with an interval for other runs and other prompts.

    Args:
        values_SP: (S, P) value of each run on each prompt. A prompt that some run left unscored (NaN) is left out.
        least_sd_S: (S,) the least standard deviation that each run's mean is taken to have; see `least_sd`.
    """
    return crossed_difference(values_SP, np.zeros_like(values_SP), least_sd_S=least_sd_S, level=level).difference


def crossed_difference(
    a_SP: ArrayLike, b_SP: ArrayLike, *, least_sd_S: ArrayLike | None = None, level: float = LEVEL
) -> Comparison:
    """Compare a with b, run s of one with run s of the other on the same prompts: mean of a − b and a t test of it.

    With the mean squares of runs, prompts and the rest of the two-way table of a − b,
        V = (MS_runs + max(MS_prompts − MS_rest, 0)) / (S·P)
        1/ν = w/(S−1) + (1−w)/(P−1),   w = MS_runs / (MS_runs + max(MS_prompts − MS_rest, 0))
    V is Hillis's. His and Satterthwaite's degrees of freedom have squares of the shares in them: over three runs they
    are large just when the runs lie close together by chance, and intervals cover .92; these cover .94 to .97
    (docs/results/coverage.md). The part of runs is not taken below that of runs with `least_sd_S`.

    Args:
        a_SP, b_SP: (S, P) values of the two sides; see `crossed_mean`.
    """
    a_SP, b_SP = np.asarray(a_SP, dtype=float), np.asarray(b_SP, dtype=float)
    if a_SP.shape != b_SP.shape or a_SP.ndim != 2:
        raise NumericError(f"a crossed comparison needs the same runs × prompts, not {a_SP.shape} and {b_SP.shape}")
    difference_SP = a_SP - b_SP
    scored_P = ~np.isnan(difference_SP).any(axis=0)
    unscored = int((~scored_P).sum() * len(difference_SP))
    difference_SP = difference_SP[:, scored_P]
    runs, prompts = difference_SP.shape
    mean = float(difference_SP.mean()) if difference_SP.size else math.nan
    counts = {"n": difference_SP.size, "clusters": min(runs, difference_SP.size), "unscored": unscored}
    if runs < 2 or prompts < 2:
        return t_comparison(mean, math.inf, math.nan, TEST, level=level, **counts)
    run_mean_S = difference_SP.mean(axis=1)
    prompt_mean_P = difference_SP.mean(axis=0)
    residual_SP = difference_SP - run_mean_S[:, None] - prompt_mean_P[None, :] + mean
    ms_runs = prompts * np.square(run_mean_S - mean).sum() / (runs - 1)
    ms_prompts = runs * np.square(prompt_mean_P - mean).sum() / (prompts - 1)
    ms_rest = np.square(residual_SP).sum() / ((runs - 1) * (prompts - 1))
    ms_prompts_above_rest = max(ms_prompts - ms_rest, 0.0)  # chance can leave an estimate of a variance below 0
    if least_sd_S is not None:
        ms_runs = max(ms_runs, prompts * np.square(floats(least_sd_S)).mean())
    total = ms_runs + ms_prompts_above_rest
    freedom = float(runs - 1)
    if total:
        freedom = total / (ms_runs / (runs - 1) + ms_prompts_above_rest / (prompts - 1))
    error = math.sqrt(total / (runs * prompts))
    fixed_error = math.sqrt(ms_prompts_above_rest / (runs * prompts))  # more runs on these prompts do not reduce it
    return t_comparison(mean, error, freedom, TEST, level=level, fixed_error=fixed_error, **counts)
