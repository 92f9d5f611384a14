"""Win rates of A against B: as judged, and estimated at equal length of the responses."""

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


def win_rate(score_N: ArrayLike, prompts_N: ArrayLike) -> Estimate:
    """Return the mean score of A, with ties as ½, clustered by prompt and within [0, 1].

    Without ties it is `clustered_rate`. With ties it is a t interval with the cluster-robust variance of
    `clustered_mean` plus `added_variance`.

    Args:
        score_N: (N,) 1 if A is preferred, ½ for a tie, 0 if B is; NaN = unscored, never a tie.
        prompts_N: (N,) prompt of each comparison.
    """
    score_N = floats(score_N)
    if np.any((score_N < 0) | (score_N > 1)):
        raise NumericError("a win rate needs scores between 0 and 1, or NaN")
    # without ties a Wilson interval applies; ties need an interval for means
    scored_n = score_N[~np.isnan(score_N)]
    if np.all((scored_n == 0) | (scored_n == 1)):
        return clustered_rate(score_N, prompts_N)
    simple = clustered_mean(score_N, prompts_N)
    if not simple.bounded:
        return simple.within(0.0, 1.0)
    critical = float(stats.t.ppf((1 + LEVEL) / 2, simple.clusters - 1))
    added = critical * math.sqrt(added_variance(simple.mean, simple.n))
    half_width = math.hypot(simple.high - simple.mean, added)
    wider = dataclasses.replace(simple, low=simple.mean - half_width, high=simple.mean + half_width)
    return wider.within(0.0, 1.0)


def added_variance(rate: float, n: int) -> float:
    """Return ((1 − p)² + p²)/n², the variance added by one more win and one more loss, each as its own cluster.

    Ten consecutive ties, or ten wins, have no variance, but do not prove that the next outcome is the same.
    """
    return ((1 - rate) ** 2 + rate**2) / n**2


PRIOR_SD = 3.0
"""Standard deviation, in logits, of the prior for judgements that length and author predict without an exception. Under
it a win rate at equal length is between 0.3 % and 99.7 % with a probability of 95 %."""


@dataclass(frozen=True)
class LengthControlled:
    """A win rate at equal length.

    Attributes:
        win_rate: win rate of A at a length difference of 0.
        length: logits per unit of tanh(difference/sd); positive if longer responses are preferred.
        problem: reason why there is no finite estimate; "" if there is one.
        note: limitation of a finite estimate; "" if there is none.
    """

    win_rate: Estimate
    length: Estimate
    problem: str = ""
    note: str = ""


def length_controlled_win_rate(
    score_N: ArrayLike, length_difference_N: ArrayLike, prompts_N: ArrayLike
) -> LengthControlled:
    """Return the win rate of A against B at a length difference of 0, after AlpacaEval 2 (arXiv:2404.04475).

        P(A is preferred) = σ(a + b·tanh(Δ/sd(Δ)))    win rate at equal length = σ(a)

    tanh lets a hundred more words matter little after five hundred. The interval is the cluster-robust interval of a
    (by prompt, with t quantiles), transformed by σ. With ties, the variance of one more win and one more loss at equal
    length is added, as in `win_rate`.

    Differences from the paper: there is no term for the difficulty of single instructions, which needs many models on
    the same instructions; regularisation only for separable judgements (see `PRIOR_SD`), where no maximum-likelihood
    estimate exists; Δ is divided by its root mean square about 0, so that equally long responses stay at 0; there is
    an interval. Limitation: if quality causes length, the removed difference is partly earned.

    Args:
        score_N: (N,) scores as in `win_rate`.
        length_difference_N: (N,) length of A's response minus that of B's, in any unit.
        prompts_N: (N,) prompt of each comparison.
    """
    score_N = floats(score_N)
    difference_N = floats(length_difference_N)
    scored_N = ~np.isnan(score_N)
    lengths_vary = bool(np.nan_to_num(difference_N[scored_N]).any())
    # the intercept is the logit of the win rate at a length difference of 0
    columns = [np.ones_like(difference_N)]
    if lengths_vary:  # a constant column would make the regression singular
        columns.append(saturated(difference_N, scored_N))
    design_NM = np.stack(columns, axis=1)
    fit = clustered_logistic(design_NM, score_N, prompts_N, separated_sd=PRIOR_SD)
    if not fit.problem and not fit.by_prior and not np.isin(score_N[scored_N], (0.0, 1.0)).all():
        fit = _with_added_variance(fit, design_NM[scored_N])
    missing = Estimate(math.nan, -math.inf, math.inf, fit.n, fit.clusters, unscored=fit.unscored)
    length = fit.estimate(1) if lengths_vary else missing
    note = ""
    if fit.by_prior:
        is_one_sided = np.ptp(score_N[scored_N]) == 0
        explained = "the judge prefers one side" if is_one_sided else "the lengths predict the preferred side"
        note = (
            f"{explained} without an exception, so the win rate at equal length is known only under a prior (standard "
            f"deviation {PRIOR_SD:g} logits); more comparisons would move it"
        )
    problem = fit.problem
    if problem and fit.n:
        problem = "the length difference is the same in every comparison"
    return LengthControlled(_rate_of_intercept(fit), length, problem, note)


def _with_added_variance(fit: LogisticFit, design_nM: FloatArray) -> LogisticFit:
    """Return the fit with the variance ((1 − p)² + p²)·h hᵀ of one more win and one more loss at equal length.

    p = σ(a), and h = H⁻¹·(1, 0) is the change of the coefficients per unit of an outcome at equal length. Without a
    difference in length this is `added_variance` on the logit scale.
    """
    probability_n = sigmoid(design_nM @ fit.coefficients_M)
    curvature_MM = (design_nM * (probability_n * (1 - probability_n))[:, None]).T @ design_nM
    change_M = np.linalg.inv(curvature_MM)[:, 0]
    added = added_variance(float(sigmoid(fit.coefficients_M[0])), 1)
    return dataclasses.replace(fit, covariance_MM=fit.covariance_MM + added * np.outer(change_M, change_M))


def saturated(difference_N: ArrayLike, scored_N: BoolArray | None = None) -> FloatArray:
    """Return tanh(Δ/√(mean Δ²)), (N,), with the mean over the scored rows; 0 if all differences are 0."""
    difference_N = floats(difference_N)
    counted = difference_N if scored_N is None else difference_N[scored_N]
    # root mean square about 0, not the standard deviation: equal lengths must stay at 0
    mean_square = float(np.nanmean(np.square(counted))) if counted.size else 0.0
    scale = math.sqrt(mean_square)
    return np.tanh(difference_N / scale) if scale else np.zeros_like(difference_N)


def _rate_of_intercept(fit: LogisticFit) -> Estimate:
    logit = fit.estimate(0)
    if math.isnan(logit.mean):
        return Estimate(math.nan, 0.0, 1.0, fit.n, fit.clusters, unscored=fit.unscored)
    # σ is monotonic, so it maps the bounds of the logit to those of the rate
    mean, low, high = (float(sigmoid(value)) for value in (logit.mean, logit.low, logit.high))
    return Estimate(mean, low, high, fit.n, fit.clusters, unscored=fit.unscored)
