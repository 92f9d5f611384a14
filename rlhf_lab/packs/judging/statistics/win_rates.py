"""Win rates of A against B: as judged, and as they would be if replies of A and B were equally long."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.logistic import LogisticFit, clustered_logistic, sigmoid


def win_rate(score_N: ArrayLike, prompts_N: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Mean score of A, ties half, clustered by prompt and within [0, 1].

    Without ties it is `clustered_rate`. With ties it is a t interval with the cluster-robust variance of
    `clustered_mean` plus `added_variance`.

    Args:
        score_N: (N,) 1 where A is preferred, ½ for a tie, 0 where B is; NaN = unscored, never a tie.
        prompts_N: (N,) prompt of each comparison.
    """
    score_N = floats(score_N)
    if np.any((score_N < 0) | (score_N > 1)):
        raise NumericError("a win rate needs scores between 0 and 1, or NaN")
    scored_n = score_N[~np.isnan(score_N)]
    if np.all((scored_n == 0) | (scored_n == 1)):
        return clustered_rate(score_N, prompts_N, level=level)
    plain = clustered_mean(score_N, prompts_N, level=level)
    if not plain.bounded:
        return within(plain, 0.0, 1.0)
    critical = float(stats.t.ppf((1 + level) / 2, plain.clusters - 1))
    half_width = math.hypot(plain.high - plain.mean, critical * math.sqrt(added_variance(plain.mean, plain.n)))
    wider = dataclasses.replace(plain, low=plain.mean - half_width, high=plain.mean + half_width)
    return within(wider, 0.0, 1.0)


def added_variance(rate: float, n: int) -> float:
    """((1 − p)² + p²)/n²: what one more win and one more loss, each a cluster of its own, add to the variance.

    Ten ties in a row, or ten wins, have no variance, yet do not show that the next outcome is the same.
    """
    return ((1 - rate) ** 2 + rate**2) / n**2


def within(estimate: Estimate, low: float, high: float) -> Estimate:
    """The estimate with its interval cut to the values that are possible."""
    return dataclasses.replace(estimate, low=max(estimate.low, low), high=min(estimate.high, high))


@dataclass(frozen=True)
class LengthControlled:
    """A win rate at equal length.

    Attributes:
        win_rate: of A where the length difference is 0.
        length: logits per unit of tanh(difference/sd); positive where the longer reply is preferred.
        problem: why there is no finite estimate; empty when there is one.
    """

    win_rate: Estimate
    length: Estimate
    problem: str = ""


def length_controlled_win_rate(
    score_N: ArrayLike, length_difference_N: ArrayLike, prompts_N: ArrayLike, *, level: float = LEVEL
) -> LengthControlled:
    """Win rate of A against B at a length difference of 0, after AlpacaEval 2 (arXiv:2404.04475).

        P(A is preferred) = σ(a + b·tanh(Δ/sd(Δ)))    win rate at equal length = σ(a)

    tanh: what a hundred words more do after five hundred more is little. The interval is that of a, cluster-robust by
    prompt with t quantiles, put through σ.

    What differs from the paper: no term for the difficulty of single instructions, which needs many models on the same
    instructions; no regularisation; Δ is divided by its root mean square about 0, so equally long replies stay at 0; an
    interval. What it cannot do: where quality causes length, the difference that it removes is partly earned.

    Args:
        score_N: (N,) as in `win_rate`.
        length_difference_N: (N,) length of A's reply less that of B's, in any unit.
        prompts_N: (N,) prompt of each comparison.
    """
    score_N = floats(score_N)
    difference_N = floats(length_difference_N)
    lengths_vary = bool(np.nan_to_num(difference_N[~np.isnan(score_N)]).any())
    columns = [np.ones_like(difference_N)]
    if lengths_vary:
        columns.append(saturated(difference_N, ~np.isnan(score_N)))
    fit = clustered_logistic(np.stack(columns, axis=1), score_N, prompts_N)
    missing = Estimate(math.nan, -math.inf, math.inf, fit.n, fit.clusters, level, fit.unscored)
    length = fit.estimate(1, level=level) if lengths_vary else missing
    return LengthControlled(_rate_of_intercept(fit, level), length, fit.problem)


def saturated(difference_N: ArrayLike, scored_N: BoolArray | None = None) -> FloatArray:
    """tanh(Δ/√(mean Δ²)), (N,), the mean over the scored rows; 0 where all differences are 0."""
    difference_N = floats(difference_N)
    counted = difference_N if scored_N is None else difference_N[scored_N]
    scale = math.sqrt(float(np.nanmean(np.square(counted)))) if counted.size else 0.0
    return np.tanh(difference_N / scale) if scale else np.zeros_like(difference_N)


def _rate_of_intercept(fit: LogisticFit, level: float) -> Estimate:
    logit = fit.estimate(0, level=level)
    if math.isnan(logit.mean):
        return Estimate(math.nan, 0.0, 1.0, fit.n, fit.clusters, level, fit.unscored)
    mean, low, high = (float(sigmoid(value)) for value in (logit.mean, logit.low, logit.high))
    return Estimate(mean, low, high, fit.n, fit.clusters, level, fit.unscored)
