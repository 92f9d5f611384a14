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
"""Bootstrap resamples, and drawn outcomes of a perfectly calibrated model."""
PER_BIN = 8
"""Fewest pairs in a bin; fewer pairs have fewer bins."""
TIE_DIGITS = 6
"""Decimals to which equal confidences are a tie: scores of one text differ by rounding between batches."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Bounds of a fitted temperature."""
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Quantiles that bound an interval."""


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
    confidence_N, correct_N, cluster_N = _scored_pairs(margin_N, clusters_N)
    bin_N = _assign_bins(confidence_N, bins)
    diagram = []
    for number in np.unique(bin_N):
        in_bin_N = bin_N == number
        accuracy = clustered_mean(correct_N[in_bin_N], cluster_N[in_bin_N])
        diagram.append(Bin(float(confidence_N[in_bin_N].mean()), accuracy))
    return diagram


def expected_calibration_error(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """ECE with the 95 % range of its sampling noise, from a bootstrap over prompts with the bins held fixed.

    Resampling raises an ECE further, so the draws are centred on the estimate. The interval says how far another
    sample's ECE would lie from this one; whether it is more than chance is read from `perfect_ece`.
    """
    unscored = int(np.isnan(floats(margin_N)).sum())
    confidence_N, correct_N, cluster_N = _scored_pairs(margin_N, clusters_N)
    pairs = confidence_N.size
    if not pairs:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0, unscored=unscored)
    distinct_clusters, prompt_N = np.unique(cluster_N, return_inverse=True)
    prompts = distinct_clusters.size
    bin_N = _assign_bins(confidence_N, bins)
    gap_sums_PB = np.zeros((prompts, int(bin_N.max()) + 1))
    np.add.at(gap_sums_PB, (prompt_N, bin_N), correct_N - confidence_N)
    ece = float(np.abs(gap_sums_PB.sum(axis=0)).sum() / pairs)
    if prompts < 2:
        return Estimate(ece, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    weights_DP = np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
    pairs_drawn_D = weights_DP @ np.bincount(prompt_N)
    draws_D = np.abs(weights_DP @ gap_sums_PB).sum(axis=1) / pairs_drawn_D
    low, high = np.quantile(draws_D - draws_D.mean(), TAILS)
    return Estimate(ece, max(0.0, ece + low), ece + high, pairs, prompts, unscored=unscored)


def perfect_ece(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """The ECE that these confidences would show if they were right: mean and 95 % range over drawn outcomes.

    Pairs of one prompt are right or wrong together more often than chance has it, as they share replies or a subject.
    Drawn outcomes do so too: a pair is right when a uniform number lies below its confidence, and pairs of a prompt
    share that number as often as `_dependence` estimates. One prompt does not bound the range.

    Args:
        margin_N: (N,) logit margins.
        clusters_N: (N,) prompt of each pair.
    """
    unscored = int(np.isnan(floats(margin_N)).sum())
    confidence_N, correct_N, cluster_N = _scored_pairs(margin_N, clusters_N)
    distinct_clusters, prompt_N = np.unique(cluster_N, return_inverse=True)
    pairs, prompts = confidence_N.size, distinct_clusters.size
    if not pairs:
        return Estimate(math.nan, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    order = np.lexsort((prompt_N, np.round(confidence_N, TIE_DIGITS)))  # draws must not depend on the order of rows
    confidence_N, correct_N, prompt_N = confidence_N[order], correct_N[order], prompt_N[order]
    bin_N = _assign_bins(confidence_N, bins)
    dependence = _dependence(confidence_N, correct_N, prompt_N, bin_N)
    rng = np.random.default_rng(0)
    uniform_of_pair_DN = rng.random((DRAWS, pairs))
    uniform_of_prompt_DP = rng.random((DRAWS, prompts))
    # A pair takes its prompt's number with probability √dependence: so both of two do with probability `dependence`.
    takes_prompts_DN = rng.random((DRAWS, pairs)) < math.sqrt(dependence)
    uniform_DN = np.where(takes_prompts_DN, uniform_of_prompt_DP[:, prompt_N], uniform_of_pair_DN)
    drawn_correct_DN = uniform_DN < confidence_N
    gap_DN = np.where(confidence_N == 0.5, 0.0, drawn_correct_DN - confidence_N)  # a tie is half right, not drawn
    _, bin_starts = np.unique(bin_N, return_index=True)  # pairs are sorted by confidence, so bins are runs of them
    draws_D = np.abs(np.add.reduceat(gap_DN, bin_starts, axis=1)).sum(axis=1) / pairs
    mean = float(draws_D.mean())
    if prompts < 2:
        return Estimate(mean, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    low, high = np.quantile(draws_D, TAILS)
    return Estimate(mean, min(float(low), mean), max(float(high), mean), pairs, prompts, unscored=unscored)


def _dependence(confidence_N: FloatArray, correct_N: FloatArray, prompt_N: np.ndarray, bin_N: np.ndarray) -> float:
    """How often two pairs of one prompt are decided by the same uniform number, in [0, 1], by moments.

    Two outcomes 1[U < p] and 1[U < q] of one number have covariance min(p, q) − pq, those of two numbers 0. So the
    share is Σ eᵢeⱼ / Σ (min(pᵢ, pⱼ) − pᵢpⱼ) over the rows i ≠ j of a prompt; e is correct − confidence less its mean
    in the bin, as miscalibration is no dependence. Rows are sorted by confidence.
    """
    gap_N = correct_N - confidence_N
    mean_gap_B = np.bincount(bin_N, weights=gap_N) / np.bincount(bin_N)
    residual_N = gap_N - mean_gap_B[bin_N]
    observed, greatest = 0.0, 0.0  # the two sums over pairs of rows
    rows_by_prompt = np.argsort(prompt_N, kind="stable")
    first_rows = np.cumsum(np.bincount(prompt_N))[:-1]
    for rows in np.split(rows_by_prompt, first_rows):
        residual_n, confidence_n = residual_N[rows], confidence_N[rows]
        observed += residual_n.sum() ** 2 - np.square(residual_n).sum()  # Σ_{i≠j} = (Σ)² − Σ of squares
        # Sorted, a row is the smaller one of each pair with a row behind it.
        sum_of_smaller = 2 * (confidence_n * np.arange(len(rows) - 1, -1, -1)).sum()
        sum_of_products = confidence_n.sum() ** 2 - np.square(confidence_n).sum()
        greatest += sum_of_smaller - sum_of_products
    return min(max(observed / greatest, 0.0), 1.0) if greatest > 0 else 0.0


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
    scored_N = ~np.isnan(floats(margin_N))
    margin_n = floats(margin_N)[scored_N]
    cluster_n = np.asarray(clusters_N).ravel()[scored_N]
    unscored = scored_N.size - margin_n.size
    distinct_clusters, prompt_n = np.unique(cluster_n, return_inverse=True)
    pairs, prompts = margin_n.size, distinct_clusters.size
    if not pairs or not margin_n.any():
        return Estimate(math.nan, -math.inf, math.inf, pairs, prompts, unscored=unscored)

    def likelihood_slope(inverse: float) -> float:
        return float((margin_n * _miss(inverse * margin_n)).sum())

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if likelihood_slope(low) <= 0:
        return Estimate(MAX_TEMPERATURE, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    if likelihood_slope(high) >= 0:
        return Estimate(MIN_TEMPERATURE, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    inverse = float(optimize.brentq(likelihood_slope, low, high, xtol=1e-12))
    temperature = 1 / inverse
    if prompts < 2:
        return Estimate(temperature, -math.inf, math.inf, pairs, prompts, unscored=unscored)
    miss_n = _miss(inverse * margin_n)
    scores_P = np.bincount(prompt_n, weights=margin_n * miss_n)
    information = float((np.square(margin_n) * miss_n * (1 - miss_n)).sum())
    correction = prompts / (prompts - 1)  # CR1, as in `clustered_mean`
    error_of_inverse = math.sqrt(correction * float(np.square(scores_P).sum())) / information
    error = error_of_inverse / inverse  # of ln a, and so of ln T
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, prompts - 1)) * error
    bounds = (math.exp(-half_width) / inverse, math.exp(half_width) / inverse)
    return Estimate(temperature, *bounds, pairs, prompts, unscored=unscored)


def rescaled(margin_N: ArrayLike, clusters_N: ArrayLike, seed: int = 0) -> FloatArray:
    """Margins divided by a temperature that was fitted without them, (N,).

    Prompts are dealt into two halves; each half is divided by what was fitted on the other.
    """
    margin_N = floats(margin_N)
    cluster_N = np.asarray(clusters_N).ravel()
    distinct_clusters, prompt_N = np.unique(cluster_N, return_inverse=True)
    half_of_prompt = np.random.default_rng(seed).permutation(distinct_clusters.size) % 2
    half_N = half_of_prompt[prompt_N]
    scaled_N = margin_N.copy()
    for side in (0, 1):
        temperature = fit_temperature(margin_N[half_N != side], cluster_N[half_N != side]).mean
        scaled_N[half_N == side] /= 1.0 if math.isnan(temperature) else temperature
    return scaled_N


def _scored_pairs(margin_N: ArrayLike, clusters_N: ArrayLike) -> tuple[FloatArray, FloatArray, np.ndarray]:
    """(confidence, correctness, cluster) of the scored pairs."""
    scored_N = ~np.isnan(floats(margin_N))
    margin_n = floats(margin_N)[scored_N]
    return confidence(margin_n), correctness(margin_n), np.asarray(clusters_N).ravel()[scored_N]


def _assign_bins(confidence_N: FloatArray, bins: int) -> np.ndarray:
    """Bin of each pair, (N,), 0 the least confident.

    A tie goes to the bin of its mean rank, so that the order of rows says nothing. A bin that ties left with fewer than
    PER_BIN pairs joins the one below. Without ties sizes differ by at most one.
    """
    pairs = confidence_N.size
    if not pairs:
        return np.zeros(0, dtype=int)
    count = max(1, min(bins, pairs // PER_BIN))
    _, level_N, pairs_L = np.unique(np.round(confidence_N, TIE_DIGITS), return_inverse=True, return_counts=True)
    rank_L = np.cumsum(pairs_L) - (pairs_L + 1) / 2  # mean rank of each level, from 0
    _, bin_L = np.unique(rank_L * count // pairs, return_inverse=True)
    while True:
        sizes = np.bincount(bin_L, weights=pairs_L)
        smallest = int(sizes.argmin())
        if sizes.size == 1 or sizes[smallest] >= PER_BIN:
            return bin_L[level_N]
        bin_L[bin_L >= max(smallest, 1)] -= 1  # the lowest bin has none below and takes the next one in


def _miss(logit_N: FloatArray) -> FloatArray:
    """1 − σ(logit), without overflow."""
    return (1 - np.tanh(logit_N / 2)) / 2
