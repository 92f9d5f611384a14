"""Statistics of repeated training on the same data: every run answers the same prompts, so the two are crossed.

The value of run s on prompt p is modelled as μ + run_s + prompt_p + residual_sp, all random. An interval over runs
alone holds for these prompts only, and an interval over prompts alone holds for these runs only. The interval here
holds for another training run on the same data, tested on other prompts of the same kind. This is the design of
multi-reader multi-case studies, and the variance is theirs (Hillis 2007, doi:10.1002/sim.2532). The effect of a
different training corpus is not covered.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.estimates import Comparison, Estimate, floats
from rlhf_lab.statistics.inference import t_comparison

TEST = "t test of crossed random effects, runs and prompts"


def crossed_mean(values_SP: ArrayLike, *, min_sd_S: ArrayLike | None = None) -> Estimate:
    """Return the mean over S runs and P prompts, with an interval for other runs and other prompts.

    Args:
        values_SP: (S, P) value of each run on each prompt. A prompt that is unscored (NaN) in any run is left out.
        min_sd_S: (S,) lower bound on the standard deviation of each run's mean; see `min_sd`.
    """
    return crossed_difference(values_SP, np.zeros_like(values_SP), min_sd_S=min_sd_S).difference


def crossed_difference(a_SP: ArrayLike, b_SP: ArrayLike, *, min_sd_S: ArrayLike | None = None) -> Comparison:
    """Compare a with b, where run s of both sides answers the same prompts: mean of a − b with a t test.

    With the mean squares of runs, prompts and residuals in the two-way table of a − b,
        V = (MS_runs + max(MS_prompts − MS_rest, 0)) / (S·P)
        1/ν = w/(S−1) + (1−w)/(P−1),   w = MS_runs / (MS_runs + max(MS_prompts − MS_rest, 0))
    V is that of Hillis. The degrees of freedom differ from his and Satterthwaite's, which use squared weights. With
    three runs those are largest when the runs agree by chance, and the intervals cover 0.92; these cover 0.94 to 0.97
    (docs/results/coverage.md).

    Args:
        a_SP, b_SP: (S, P) values of the two sides; see `crossed_mean`.
        min_sd_S: (S,) lower bound on the standard deviation of each run's mean difference; it bounds MS_runs.
    Raises:
        NumericError: the two sides do not have the same (S, P) shape.
    """
    a_SP, b_SP = np.asarray(a_SP, dtype=float), np.asarray(b_SP, dtype=float)
    if a_SP.shape != b_SP.shape or a_SP.ndim != 2:
        raise NumericError(
            f"a crossed comparison needs the same runs × prompts on both sides, not shapes {a_SP.shape} and "
            f"{b_SP.shape}; restrict both to their common runs and prompts"
        )
    difference_SP = a_SP - b_SP
    # The two-way table must be complete, so a prompt that is unscored in any run is left out.
    scored_P = ~np.isnan(difference_SP).any(axis=0)
    unscored = int((~scored_P).sum() * len(difference_SP))
    difference_SP = difference_SP[:, scored_P]
    runs, prompts = difference_SP.shape
    mean = float(difference_SP.mean()) if difference_SP.size else math.nan
    counts = {"n": difference_SP.size, "clusters": min(runs, difference_SP.size), "unscored": unscored}
    if runs < 2 or prompts < 2:
        return t_comparison(mean, math.inf, math.nan, TEST, **counts)
    # Two-way analysis of variance without replication: main effects of runs and prompts, and residuals.
    run_mean_S = difference_SP.mean(axis=1)
    prompt_mean_P = difference_SP.mean(axis=0)
    residual_SP = difference_SP - run_mean_S[:, None] - prompt_mean_P[None, :] + mean
    ms_runs = prompts * np.square(run_mean_S - mean).sum() / (runs - 1)
    ms_prompts = runs * np.square(prompt_mean_P - mean).sum() / (prompts - 1)
    ms_rest = np.square(residual_SP).sum() / ((runs - 1) * (prompts - 1))
    ms_prompts_above_rest = max(ms_prompts - ms_rest, 0.0)  # by chance the estimated variance can be negative
    # Runs that agree by chance would otherwise make the interval too narrow.
    if min_sd_S is not None:
        ms_runs = max(ms_runs, prompts * np.square(floats(min_sd_S)).mean())
    total = ms_runs + ms_prompts_above_rest
    freedom = total / (ms_runs / (runs - 1) + ms_prompts_above_rest / (prompts - 1)) if total else float(runs - 1)
    error = math.sqrt(total / (runs * prompts))
    fixed_error = math.sqrt(ms_prompts_above_rest / (runs * prompts))  # more runs on these prompts do not reduce it
    return t_comparison(mean, error, freedom, TEST, fixed_error=fixed_error, **counts)
