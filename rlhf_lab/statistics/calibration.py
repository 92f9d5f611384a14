"""Calibration of a reward model: is a reply it calls better with confidence .8 the preferred one in 80 % of pairs?

With margin Δ = logit(chosen) − logit(rejected), the model bets on the side it scores higher:

    confidence σ(|Δ|), in [½, 1)        correct 1[Δ > 0]; ½ for an exact tie, which is a coin at confidence ½

Signed margins would not do: with σ(Δ) as "confidence" that the chosen reply is chosen, every pair is right by
construction. The error is the count-weighted gap over bins of equal count (arXiv:1706.04599, eq. 3):

    ECE = Σ_b n_b/n · |accuracy_b − confidence_b|

Equal confidences, common with rewards of few values, share a bin, as in scikit-learn's
`calibration_curve(strategy="quantile")`; a cut through them would make the error depend on the order of rows. With ties
there are fewer bins than asked for, and they differ in size.

A perfectly calibrated model does not have ECE 0: the gap of a bin of n_b pairs is noise of size √(p(1−p)/n_b), and its
absolute value does not average out. `perfect_ece` gives what perfect calibration would show on these very confidences;
an ECE inside that range is no evidence of miscalibration. `overconfidence`, the signed mean gap, has no such bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean

BINS = 10
DRAWS = 1000
PER_BIN = 8
"""Fewest pairs in a bin; fewer pairs have fewer bins."""
TIE_DIGITS = 6
"""Decimals to which equal confidences are a tie: scores of one text differ by rounding between batches."""
SMALLEST, LARGEST = 1e-3, 1e3
"""Bounds of a fitted temperature."""


def confidence(margin_N: ArrayLike) -> FloatArray:
    """σ(|Δ|), (N,)."""
    return 1 / (1 + np.exp(-np.abs(floats(margin_N))))


def correctness(margin_N: ArrayLike) -> FloatArray:
    """1 where the chosen side has the higher score, ½ for a tie, NaN where a side is unscored, (N,)."""
    return np.sign(floats(margin_N)) / 2 + 0.5


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram.

    Attributes:
        confidence: mean confidence of its pairs.
        accuracy: share of them that are ordered as labelled.
    """

    confidence: float
    accuracy: Estimate


def reliability(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> list[Bin]:
    """Bins of equal count up to ties, from least to most confident; unscored pairs are left out.

    Args:
        margin_N: (N,) logit margins.
        clusters_N: (N,) prompt of each pair.
    """
    sure_N, right_N, cluster_N = _scored(margin_N, clusters_N)
    place_N = _places(sure_N, bins)
    parts = [place_N == place for place in np.unique(place_N)]
    return [Bin(float(sure_N[part].mean()), clustered_mean(right_N[part], cluster_N[part])) for part in parts]


def expected_calibration_error(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """ECE with the 95 % range of its sampling noise, from a bootstrap over prompts with the bins held fixed.

    Resampling raises an ECE further, so the draws are centred on the estimate. The interval says how far another
    sample's ECE would lie from this one; whether it is more than chance is read from `perfect_ece`.
    """
    unscored = int(np.isnan(floats(margin_N)).sum())
    sure_N, right_N, cluster_N = _scored(margin_N, clusters_N)
    names, prompt_N = np.unique(cluster_N, return_inverse=True)
    if not sure_N.size:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0, unscored=unscored)
    place_N = _places(sure_N, bins)
    gaps_PB = np.zeros((names.size, int(place_N.max()) + 1))
    np.add.at(gaps_PB, (prompt_N, place_N), right_N - sure_N)
    ece = float(np.abs(gaps_PB.sum(axis=0)).sum() / sure_N.size)
    if names.size < 2:
        return Estimate(ece, -math.inf, math.inf, sure_N.size, names.size, unscored=unscored)
    weights_DP = np.random.default_rng(0).multinomial(names.size, np.full(names.size, 1 / names.size), DRAWS)
    draws_D = np.abs(weights_DP @ gaps_PB).sum(axis=1) / (weights_DP @ np.bincount(prompt_N))
    low, high = np.quantile(draws_D - draws_D.mean(), _tails())
    return Estimate(ece, max(0.0, ece + low), ece + high, sure_N.size, names.size, unscored=unscored)


def perfect_ece(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """The ECE that these confidences would show if they were right: mean and 95 % range over drawn outcomes.

    Pairs of one prompt are right or wrong together more often than chance has it, as they share replies or a subject.
    Drawn outcomes do so too: a pair is right when a uniform number lies below its confidence, and pairs of a prompt
    share that number as often as `_dependence` finds them to. One prompt does not bound the range.

    Args:
        margin_N: (N,) logit margins.
        clusters_N: (N,) prompt of each pair.
    """
    unscored = int(np.isnan(floats(margin_N)).sum())
    sure_N, right_N, cluster_N = _scored(margin_N, clusters_N)
    names, prompt_N = np.unique(cluster_N, return_inverse=True)
    count = (sure_N.size, names.size)
    if not sure_N.size:
        return Estimate(math.nan, -math.inf, math.inf, *count, unscored=unscored)
    order = np.lexsort((prompt_N, np.round(sure_N, TIE_DIGITS)))  # draws must not depend on the order of rows
    sure_N, right_N, prompt_N = sure_N[order], right_N[order], prompt_N[order]
    place_N = _places(sure_N, bins)
    shared = _dependence(sure_N, right_N, prompt_N, place_N)
    rng = np.random.default_rng(0)
    own_DN = rng.random((DRAWS, sure_N.size))
    prompt_DP = rng.random((DRAWS, names.size))
    share_DN = rng.random((DRAWS, sure_N.size)) < math.sqrt(shared)  # both of two pairs share with probability `shared`
    drawn_DN = np.where(share_DN, prompt_DP[:, prompt_N], own_DN) < sure_N
    gap_DN = np.where(sure_N == 0.5, 0.0, drawn_DN - sure_N)  # a tie is half right, not drawn
    starts = np.unique(place_N, return_index=True)[1]
    draws_D = np.abs(np.add.reduceat(gap_DN, starts, axis=1)).sum(axis=1) / sure_N.size
    mean = float(draws_D.mean())
    if names.size < 2:
        return Estimate(mean, -math.inf, math.inf, *count, unscored=unscored)
    low, high = np.quantile(draws_D, _tails())
    return Estimate(mean, min(float(low), mean), max(float(high), mean), *count, unscored=unscored)


def _dependence(sure_N: FloatArray, right_N: FloatArray, prompt_N: np.ndarray, place_N: np.ndarray) -> float:
    """How often two pairs of one prompt are decided by the same uniform number, in [0, 1], by moments.

    Two outcomes 1[U < p] and 1[U < q] of one number have covariance min(p, q) − pq, those of two numbers 0. So the
    share is Σ eᵢeⱼ / Σ (min(pᵢ, pⱼ) − pᵢpⱼ) over the rows i ≠ j of a prompt; e is correct − confidence less its mean
    in the bin, as miscalibration is no dependence.
    """
    gap_N = right_N - sure_N
    residual_N = gap_N - (np.bincount(place_N, weights=gap_N) / np.bincount(place_N))[place_N]
    seen, greatest = 0.0, 0.0
    for rows in np.split(np.argsort(prompt_N, kind="stable"), np.cumsum(np.bincount(prompt_N))[:-1]):
        residual_n, sure_n = residual_N[rows], sure_N[rows]  # by confidence, as the caller sorted them
        seen += residual_n.sum() ** 2 - np.square(residual_n).sum()
        smaller = 2 * (sure_n * np.arange(len(rows) - 1, -1, -1)).sum()
        greatest += smaller - (sure_n.sum() ** 2 - np.square(sure_n).sum())
    return min(max(seen / greatest, 0.0), 1.0) if greatest > 0 else 0.0


def overconfidence(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Mean confidence minus accuracy: above 0 the model is surer than it is right."""
    return clustered_mean(confidence(margin_N) - correctness(margin_N), clusters_N)


def brier(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Mean squared distance of confidence from outcome (Brier 1950); a coin that knows nothing has .25."""
    return clustered_mean(np.square(confidence(margin_N) - correctness(margin_N)), clusters_N)


def fit_temperature(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """The T that makes σ(Δ/T) most likely (arXiv:1706.04599, section 4.2): above 1 the model is overconfident.

    The likelihood is concave in a = 1/T. The interval is that of ln T, from the clustered sandwich variance of a. Where
    the likelihood has no maximum inside (every pair ordered right: T → 0; no better than chance: T → ∞) the estimate is
    the bound of the search, without an interval.
    """
    margin_n, cluster_n = _known(margin_N), np.asarray(clusters_N).ravel()[~np.isnan(floats(margin_N))]
    unscored = floats(margin_N).size - margin_n.size
    names, prompt_n = np.unique(cluster_n, return_inverse=True)
    count = (margin_n.size, names.size)
    if not margin_n.size or not margin_n.any():
        return Estimate(math.nan, -math.inf, math.inf, *count, unscored=unscored)

    def slope(inverse: float) -> float:
        return float((margin_n * _miss(inverse * margin_n)).sum())

    low, high = 1 / LARGEST, 1 / SMALLEST
    if slope(low) <= 0 or slope(high) >= 0:
        edge = LARGEST if slope(low) <= 0 else SMALLEST
        return Estimate(edge, -math.inf, math.inf, *count, unscored=unscored)
    inverse = float(optimize.brentq(slope, low, high, xtol=1e-12))
    miss_n = _miss(inverse * margin_n)
    scores_P = np.bincount(prompt_n, weights=margin_n * miss_n)
    information = float((np.square(margin_n) * miss_n * (1 - miss_n)).sum())
    if names.size < 2:
        return Estimate(1 / inverse, -math.inf, math.inf, *count, unscored=unscored)
    factor = names.size / (names.size - 1)
    error = math.sqrt(factor * float(np.square(scores_P).sum())) / information / inverse  # of ln a, and so of ln T
    half = float(stats.t.ppf((1 + LEVEL) / 2, names.size - 1)) * error
    bounds = (math.exp(-half) / inverse, math.exp(half) / inverse)
    return Estimate(1 / inverse, *bounds, *count, unscored=unscored)


def rescaled(margin_N: ArrayLike, clusters_N: ArrayLike, seed: int = 0) -> FloatArray:
    """Margins divided by a temperature that was fitted without them, (N,).

    Prompts are dealt into two halves; each half is divided by what was fitted on the other.
    """
    margin_N, cluster_N = floats(margin_N), np.asarray(clusters_N).ravel()
    names, prompt_N = np.unique(cluster_N, return_inverse=True)
    half_N = (np.random.default_rng(seed).permutation(names.size) % 2)[prompt_N]
    scaled_N = margin_N.copy()
    for side in (0, 1):
        other = fit_temperature(margin_N[half_N != side], cluster_N[half_N != side]).mean
        scaled_N[half_N == side] /= 1.0 if math.isnan(other) else other
    return scaled_N


def _scored(margin_N: ArrayLike, clusters_N: ArrayLike) -> tuple[FloatArray, FloatArray, np.ndarray]:
    """(confidence, correctness, cluster) of the scored pairs."""
    known = ~np.isnan(floats(margin_N))
    margin_n = floats(margin_N)[known]
    return confidence(margin_n), correctness(margin_n), np.asarray(clusters_N).ravel()[known]


def _known(margin_N: ArrayLike) -> FloatArray:
    margin_N = floats(margin_N)
    return margin_N[~np.isnan(margin_N)]


def _places(sure_N: FloatArray, bins: int) -> np.ndarray:
    """Bin of each pair, (N,), 0 the least confident.

    A tie goes to the bin of its mean rank, so that the order of rows says nothing. A bin that ties left with fewer than
    PER_BIN pairs joins the one below. Without ties sizes differ by at most one.
    """
    if not sure_N.size:
        return np.zeros(0, dtype=int)
    count = max(1, min(bins, sure_N.size // PER_BIN))
    _, level_N, pairs_L = np.unique(np.round(sure_N, TIE_DIGITS), return_inverse=True, return_counts=True)
    rank_L = np.cumsum(pairs_L) - (pairs_L + 1) / 2  # mean rank of each level, from 0
    _, place_L = np.unique(rank_L * count // sure_N.size, return_inverse=True)
    while True:
        sizes = np.bincount(place_L, weights=pairs_L)
        smallest = int(sizes.argmin())
        if sizes.size == 1 or sizes[smallest] >= PER_BIN:
            return place_L[level_N]
        place_L[place_L >= max(smallest, 1)] -= 1  # the lowest bin has none below and takes the next one in


def _miss(logit_N: FloatArray) -> FloatArray:
    """1 − σ(logit), without overflow."""
    return (1 - np.tanh(logit_N / 2)) / 2


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2
