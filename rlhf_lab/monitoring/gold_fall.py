"""Has the true reward of a run fallen? Its loss is compared with what a healthy run of such noise loses by chance.

The true reward of iteration t is the run's course plus noise, part of which is correlated between iterations:

    x_t = course_t + d_t + e_t
    e_t   sampling, independent, variance s², known from the spread over prompts
    d_t   drift of the policy, AR(1) with correlation φ and variance r·s²

The loss of a window is the mean of the best earlier window less its own. Drift makes windows differ by more than
sampling does, and the best of many windows lies above the course, so that the largest loss of a healthy run is far from
0. How far depends on (φ, r), which a run of some 40 iterations determines only roughly. Hence a grid of noises is
averaged over, weighted by restricted likelihood (Patterson & Thompson 1971) around a course that changes its slope
once, at the best window; around a constant, a true fall would pass for drift. The threshold is the (1 − level) quantile
of the largest loss of constant courses, over simulated runs of these noises.

Simulated at 30 and 40 iterations and level 5 %: of constant courses at most 1 % are called fallen with independent
noise or φ = .5, 2–5 % with φ = .8 and 13 % with φ = .9; of rising ones less. Of falls by 3 sd of all noise .6–.85 are
found at 40 iterations and r ≤ 1, .35 with φ = .5 and r = 9, which looks like φ = .8; of falls by 2 sd .4–.6 when they
take 5 iterations, and .25–.4 when they take 20.

Assumed: normal noise, φ up to about .8, equal noise at all iterations, one peak. Left out: uncertainty of s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.types import FloatArray

IntArray = NDArray[np.int64]
WINDOW = 5
"""Iterations that are averaged before true rewards are compared; fewer in runs below 40 iterations."""
SHORTEST, LONGEST = 8, 80
"""Fewest iterations that can show a fall; most points, to which a longer run is averaged first."""
SIMULATED = 1000
"""Simulated runs of each noise."""
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
DRIFTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""The grid of noises: φ, and the variance of drift in units of that of sampling, with a uniform prior."""
LEAST_SAMPLING = 0.2
"""Least sd of sampling, in units of the noise that neighbouring iterations show; drift is in units of sampling, which
therefore must not be 0."""


@dataclass(frozen=True)
class Fall:
    """Where the true reward turned.

    Attributes:
        peak: last iteration of the best window before the fall.
        fall: iteration at which the loss is significant.
    """

    peak: int
    fall: int


def gold_fall(mean_T: FloatArray, error_T: FloatArray, *, level: float = 0.05) -> Fall | None:
    """The first iteration whose window of true rewards lies significantly below the best earlier one, or None.

    Windows have up to WINDOW iterations and do not overlap. A run whose true reward never falls is called fallen with
    probability `level` at most, as far as the noise is what the head of this file assumes.

    Args:
        mean_T, error_T: true reward of the samples of each iteration and its standard error, (T,).
    """
    pieces = np.array_split(np.arange(len(mean_T)), min(max(len(mean_T), 1), LONGEST))  # iterations of each point
    if len(pieces) < SHORTEST:
        return None
    mean_T = np.array([mean_T[piece].mean() for piece in pieces])
    variances = [np.square(error_T[piece]).mean() / len(piece) for piece in pieces]
    change = float(np.sqrt(np.square(np.diff(mean_T)).mean() / 2))  # a difference has twice the variance of a point
    sampling = max(float(np.sqrt(np.mean(variances))), LEAST_SAMPLING * change)
    size = min(WINDOW, max(1, len(mean_T) // 8))
    loss_1W, best_1W = _losses(mean_T[None], size)
    loss_W, best_W = loss_1W[0], best_1W[0]
    if loss_W.max() <= 0:
        return None
    peak = int(best_W[loss_W.argmax()]) + size // 2
    weights_K = _likely_noises(mean_T / sampling, peak)
    threshold = sampling * _largest_loss(weights_K, len(mean_T), size, level)
    significant = np.flatnonzero(loss_W > threshold)
    if not len(significant):
        return None
    first = int(significant[0])
    last_of_best = best_W[first] + size - 1
    last_of_fallen = first + 2 * size - 1  # losses begin at window `size`, which ends at point 2·size − 1
    return Fall(peak=int(pieces[last_of_best][-1]), fall=int(pieces[last_of_fallen][-1]))


def _likely_noises(mean_T: FloatArray, peak: int) -> FloatArray:
    """Weight of each noise of the grid, (K,), summing to 1: its restricted likelihood of true rewards in units of s.

    The course is linear up to the iteration `peak` and after it; its three coefficients are integrated out:
        log L = −½ (log|V| + log|X'V⁻¹X| + x'V⁻¹x − b'X'V⁻¹x),    b = (X'V⁻¹X)⁻¹ X'V⁻¹x
    """
    time_T = np.arange(len(mean_T), dtype=float)
    turn = min(max(peak, 2), len(mean_T) - 3)  # either slope needs points of its own
    course_TC = np.stack([np.ones_like(time_T), time_T, np.maximum(0, time_T - turn)], axis=1)
    precision_KTT, log_size_K = _precisions(len(mean_T))
    weighted_KTC = precision_KTT @ course_TC
    information_KCC = course_TC.T @ weighted_KTC
    projected_KC = mean_T @ weighted_KTC
    coefficient_KC = np.linalg.solve(information_KCC, projected_KC[:, :, None])[:, :, 0]
    residual_K = (precision_KTT @ mean_T) @ mean_T - (coefficient_KC * projected_KC).sum(axis=1)
    log_likelihood_K = -0.5 * (log_size_K + np.linalg.slogdet(information_KCC)[1] + residual_K)
    weights_K = np.exp(log_likelihood_K - log_likelihood_K.max())  # the maximum cancels; without it exp underflows
    return weights_K / weights_K.sum()


def _largest_loss(weights_K: FloatArray, iterations: int, size: int, level: float) -> float:
    """The (1 − level) quantile of the largest loss of a run whose noise is drawn by these weights, in units of s."""
    loss_M, noise_M = _simulated_losses(iterations, size)
    cumulative_M = np.cumsum(weights_K[noise_M]) / SIMULATED
    quantile = int(np.searchsorted(cumulative_M, 1 - level))
    return float(loss_M[min(quantile, len(loss_M) - 1)])  # a level near 0 can lie beyond the rounded sum


@cache
def _precisions(iterations: int) -> tuple[FloatArray, FloatArray]:
    """(V⁻¹ (K, T, T), log|V| (K,)) of each noise, V in units of s²."""
    distance_TT = np.abs(np.subtract.outer(np.arange(iterations), np.arange(iterations)))
    noises = [
        np.eye(iterations) + drift * np.power(correlation, distance_TT)
        for correlation in CORRELATIONS
        for drift in DRIFTS
    ]
    variance_KTT = np.array(noises, dtype=np.float64)
    _, log_size_K = np.linalg.slogdet(variance_KTT)
    return np.linalg.inv(variance_KTT).astype(np.float64), log_size_K.astype(np.float64)


@cache
def _simulated_losses(iterations: int, size: int) -> tuple[FloatArray, IntArray]:
    """Largest losses of constant courses in ascending order, in units of s, and the noise that each one had, (K·R,)."""
    rng = np.random.default_rng(0)  # fixed, so that the verdict depends on the data alone
    sampling_RT = rng.standard_normal((SIMULATED, iterations))
    largest_KR = []
    for correlation in CORRELATIONS:
        drift_RT = autoregressive(correlation, rng.standard_normal((SIMULATED, iterations)))
        for drift in DRIFTS:
            loss_RW, _ = _losses(sampling_RT + np.sqrt(drift) * drift_RT, size)
            largest_KR.append(loss_RW.max(axis=1))
    loss_M = np.concatenate(largest_KR)
    order = np.argsort(loss_M)
    return loss_M[order], order // SIMULATED  # runs of one noise lie together, SIMULATED of them


def autoregressive(correlation: float, shocks_RT: FloatArray) -> FloatArray:
    """Stationary AR(1) series of variance 1 from (R, T) independent standard normal shocks."""
    values_RT = shocks_RT.copy()
    for t in range(1, shocks_RT.shape[1]):
        values_RT[:, t] = correlation * values_RT[:, t - 1] + np.sqrt(1 - correlation**2) * shocks_RT[:, t]
    return values_RT


def _losses(mean_RT: FloatArray, size: int) -> tuple[FloatArray, IntArray]:
    """Loss of each window from the best one that ends before it, and the start of that one, (R, windows − size)."""
    windows_RW = np.lib.stride_tricks.sliding_window_view(mean_RT, size, axis=1).mean(axis=2)
    best_RW = np.maximum.accumulate(windows_RW, axis=1)
    # Start of the best window so far: the place of each new maximum, carried forward.
    start_RW = np.where(windows_RW == best_RW, np.arange(windows_RW.shape[1]), 0)
    start_RW = np.maximum.accumulate(start_RW, axis=1)
    return best_RW[:, :-size] - windows_RW[:, size:], start_RW[:, :-size]
