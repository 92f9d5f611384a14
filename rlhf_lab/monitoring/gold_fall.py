"""Test for a fall of the true reward of a run: its loss is compared with the chance loss of a run without a fall.

The true reward of iteration t is the run's course plus noise, part of which is correlated between iterations:

    x_t = course_t + d_t + e_t
    e_t   sampling noise, independent, variance s², known from the spread over prompts
    d_t   drift of the policy, AR(1) with correlation φ and variance r·s²

The loss of a window is the mean of the best earlier window minus its own mean. Drift makes windows differ by more than
sampling does, and the best of many windows lies above the course. The largest loss of a run without a fall is therefore
far from 0. It depends on (φ, r), which a run of about 40 iterations determines only roughly. The test therefore
averages over a grid of noises, weighted by restricted likelihood (Patterson & Thompson 1971) around a course that
changes its slope once, at the best window. Around a constant course, a true fall would be attributed to drift. The
threshold is the 95 % quantile of the largest loss of constant courses, over simulated runs with these noises.

Simulated at 30 and 40 iterations and level 5 %: at most 1 % of constant courses are called fallen with independent
noise or φ = .5, 2–5 % with φ = .8 and 13 % with φ = .9; fewer of rising ones. Falls by 3 sd of all noise are found with
probability .6–.85 at 40 iterations and r ≤ 1, and .35 with φ = .5 and r = 9, which looks like φ = .8. Falls by 2 sd are
found with probability .4–.6 if they take 5 iterations, and .25–.4 if they take 20.

Assumptions: normal noise, φ up to about .8, equal noise at all iterations, one peak. The uncertainty of s is neglected.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from rlhf_lab.core.arrays import FloatArray, IntArray

FALSE_ALARMS = 0.05
"""Probability that a run whose true reward never falls is called fallen."""
WINDOW = 5
"""Number of iterations that are averaged before true rewards are compared; fewer in runs below 40 iterations."""
SHORTEST, LONGEST = 8, 80
"""Minimum number of iterations that can show a fall; maximum number of points, to which longer runs are averaged."""
SIMULATED = 1000
"""Number of simulated runs with each noise."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
DRIFTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""Grid of noises, with a uniform prior: φ, and the variance of drift in units of the variance of sampling."""
LEAST_SAMPLING = 0.2
"""Minimum sd of sampling, in units of the noise between neighbouring iterations.

Drift is in units of sampling, which therefore must not be 0.
"""


@dataclass(frozen=True)
class Fall:
    """Location of the fall of the true reward.

    Attributes:
        peak: last iteration of the best window before the fall.
        fall: iteration at which the loss is significant.
    """

    peak: int
    fall: int


def gold_fall(mean_T: FloatArray, error_T: FloatArray) -> Fall | None:
    """Return the first iteration whose window of true rewards is significantly below the best earlier one, or None.

    Windows have up to WINDOW iterations and do not overlap. A run whose true reward never falls is called fallen with
    a probability of at most FALSE_ALARMS, under the assumptions in this module's docstring.

    Args:
        mean_T, error_T: true reward of the samples of each iteration and its standard error, (T,).
    """
    # iterations of each point; a long run is averaged to LONGEST points
    points = min(max(len(mean_T), 1), LONGEST)
    pieces = np.array_split(np.arange(len(mean_T)), points)
    if len(pieces) < SHORTEST:
        return None
    mean_T = np.array([mean_T[piece].mean() for piece in pieces])
    # variance of a point, i.e. of the mean of its iterations
    variances = [np.square(error_T[piece]).mean() / len(piece) for piece in pieces]
    # noise between neighbouring points; a difference has twice the variance of a point
    squared_change = np.square(np.diff(mean_T)).mean()
    change = float(np.sqrt(squared_change / 2))
    sampling_sd = float(np.sqrt(np.mean(variances)))
    sampling = max(sampling_sd, LEAST_SAMPLING * change)
    size = min(WINDOW, max(1, len(mean_T) // 8))
    loss_1W, best_1W = _losses(mean_T[None], size)
    loss_W, best_W = loss_1W[0], best_1W[0]
    if loss_W.max() <= 0:
        return None
    peak = int(best_W[loss_W.argmax()]) + size // 2
    weights_K = _likely_noises(mean_T / sampling, peak)
    threshold = sampling * _largest_loss(weights_K, len(mean_T), size)
    significant = np.flatnonzero(loss_W > threshold)
    if not len(significant):
        return None
    first = int(significant[0])
    last_of_best = best_W[first] + size - 1
    last_of_fallen = first + 2 * size - 1  # losses begin at window `size`, which ends at point 2·size − 1
    peak_iteration = int(pieces[last_of_best][-1])
    fall_iteration = int(pieces[last_of_fallen][-1])
    return Fall(peak=peak_iteration, fall=fall_iteration)


def _likely_noises(mean_T: FloatArray, peak: int) -> FloatArray:
    """Return the weight of each noise of the grid, (K,), summing to 1: its restricted likelihood, in units of s.

    The course is linear up to the iteration `peak` and after it; its three coefficients are integrated out:
        log L = −½ (log|V| + log|X'V⁻¹X| + x'V⁻¹x − b'X'V⁻¹x),    b = (X'V⁻¹X)⁻¹ X'V⁻¹x
    """
    time_T = np.arange(len(mean_T), dtype=float)
    turn = min(max(peak, 2), len(mean_T) - 3)  # each slope needs several points
    slope_change_T = np.maximum(0, time_T - turn)
    course_TC = np.stack([np.ones_like(time_T), time_T, slope_change_T], axis=1)
    precision_KTT, log_size_K = _precisions(len(mean_T))
    weighted_KTC = precision_KTT @ course_TC
    information_KCC = course_TC.T @ weighted_KTC
    projected_KC = mean_T @ weighted_KTC
    coefficient_KC = np.linalg.solve(information_KCC, projected_KC[:, :, None])[:, :, 0]
    residual_K = (precision_KTT @ mean_T) @ mean_T - (coefficient_KC * projected_KC).sum(axis=1)
    log_information_K = np.linalg.slogdet(information_KCC)[1]
    log_likelihood_K = -0.5 * (log_size_K + log_information_K + residual_K)
    weights_K = np.exp(log_likelihood_K - log_likelihood_K.max())  # the maximum cancels, and exp does not underflow
    return weights_K / weights_K.sum()


def _largest_loss(weights_K: FloatArray, iterations: int, size: int) -> float:
    """Return the (1 − FALSE_ALARMS) quantile of the largest loss with noise of these weights, in units of s."""
    loss_M, noise_M = _simulated_losses(iterations, size)
    cumulative_M = np.cumsum(weights_K[noise_M]) / SIMULATED
    quantile = int(np.searchsorted(cumulative_M, 1 - FALSE_ALARMS))
    return float(loss_M[quantile])


@cache
def _precisions(iterations: int) -> tuple[FloatArray, FloatArray]:
    """Return (V⁻¹ (K, T, T), log|V| (K,)) of each noise, V in units of s²."""
    time_T = np.arange(iterations)
    distance_TT = np.abs(np.subtract.outer(time_T, time_T))
    noises = []
    for correlation in CORRELATIONS:
        autocorrelation_TT = np.power(correlation, distance_TT)  # AR(1): φ to the power of the distance
        noises += [np.eye(iterations) + drift * autocorrelation_TT for drift in DRIFTS]
    variance_KTT = np.array(noises, dtype=np.float64)
    _, log_size_K = np.linalg.slogdet(variance_KTT)
    return np.linalg.inv(variance_KTT).astype(np.float64), log_size_K.astype(np.float64)


@cache
def _simulated_losses(iterations: int, size: int) -> tuple[FloatArray, IntArray]:
    """Return the largest losses of constant courses, ascending, in units of s, and the noise of each one, (K·R,)."""
    rng = np.random.default_rng(0)  # a fixed seed, so that the verdict depends only on the data
    sampling_RT = rng.standard_normal((SIMULATED, iterations))
    largest_KR = []
    for correlation in CORRELATIONS:
        drift_RT = autoregressive(correlation, rng.standard_normal((SIMULATED, iterations)))
        for drift in DRIFTS:
            loss_RW, _ = _losses(sampling_RT + np.sqrt(drift) * drift_RT, size)
            largest_KR.append(loss_RW.max(axis=1))
    loss_M = np.concatenate(largest_KR)
    order = np.argsort(loss_M)
    return loss_M[order], order // SIMULATED  # each noise has SIMULATED consecutive runs


def autoregressive(correlation: float, shocks_RT: FloatArray) -> FloatArray:
    """Return stationary AR(1) series of variance 1 from (R, T) independent standard normal shocks."""
    values_RT = shocks_RT.copy()
    for t in range(1, shocks_RT.shape[1]):
        innovation_R = np.sqrt(1 - correlation**2) * shocks_RT[:, t]  # keeps the variance at 1
        values_RT[:, t] = correlation * values_RT[:, t - 1] + innovation_R
    return values_RT


def _losses(mean_RT: FloatArray, size: int) -> tuple[FloatArray, IntArray]:
    """Return the loss of each window against the best earlier one, and that one's start, (R, windows − size) each."""
    windows_RW = np.lib.stride_tricks.sliding_window_view(mean_RT, size, axis=1).mean(axis=2)
    best_RW = np.maximum.accumulate(windows_RW, axis=1)
    # start of the best window so far: the index of each new maximum, carried forward
    start_RW = np.where(windows_RW == best_RW, np.arange(windows_RW.shape[1]), 0)
    start_RW = np.maximum.accumulate(start_RW, axis=1)
    # a window is compared with those that end before it starts, i.e. `size` windows earlier
    loss_RW = best_RW[:, :-size] - windows_RW[:, size:]
    return loss_RW, start_RW[:, :-size]
