"""Calibration of a reward model: are its preferences with confidence 0.8 right in 80 % of pairs?

With the margin Δ = logit(chosen) − logit(rejected), the model predicts that the response with the higher score is the
preferred one:

    confidence σ(|Δ|), in [½, 1)        correct 1[Δ > 0]; ½ for an exact tie, which has confidence ½

Signed margins cannot be used: with σ(Δ) as the confidence that the chosen response is preferred, every pair would be
right by construction. The error is the count-weighted gap over bins of equal count (arXiv:1706.04599, eq. 3):

    ECE = Σ_b n_b/n · |accuracy_b − confidence_b|

Equal confidences, which are common if a reward has few values, are in the same bin, as in scikit-learn's
`calibration_curve(strategy="quantile")`. A bin boundary between equal confidences would make the error depend on the
order of rows. Ties therefore lead to fewer bins than requested, and to bins of different size.

A perfectly calibrated model does not have ECE 0: the gap of a bin of n_b pairs is noise of size √(p(1−p)/n_b), and its
absolute value does not average out. `perfect_ece` is the ECE of a perfectly calibrated model with the same
confidences. An ECE inside that range is no evidence of miscalibration. `overconfidence`, the signed mean gap, has no
such bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, cluster_labels, floats, win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.logistic import sigmoid
from rlhf_lab.statistics.resampling import DRAWS, TAIL, bootstrap_estimate, resample_weights

BINS = 10
"""Default number of bins."""
PER_BIN = 8
"""Minimum number of pairs in a bin; with fewer pairs there are fewer bins."""
TIE_DIGITS = 6
"""Confidences equal to this many decimals are a tie: scores of one text differ by rounding between batches."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3


def confidence(margin_N: ArrayLike) -> FloatArray:
    """Return the confidence σ(|Δ|) of each pair, (N,)."""
    return sigmoid(np.abs(floats(margin_N)))


def correctness(margin_N: ArrayLike) -> FloatArray:
    """Return 1 if the chosen response has the higher score, 0 if lower, ½ for a tie, NaN if unscored, (N,)."""
    return win_or_tie(floats(margin_N))


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram: mean confidence, and fraction of pairs that are right."""

    confidence: float
    accuracy: Estimate


def reliability(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> list[Bin]:
    """Return bins of equal count (up to ties), in order of confidence; unscored pairs are left out.

    Args:
        margin_N: (N,) margins in logits, here and below.
        clusters_N: (N,) prompt of each pair.
        bins: requested number of bins.
    """
    pairs = _scored_pairs(margin_N, clusters_N)
    confidence_N, correct_N = confidence(pairs.margin_n), correctness(pairs.margin_n)
    bin_N = _assign_bins(confidence_N, bins)
    diagram = []
    for number in np.unique(bin_N):
        in_bin_N = bin_N == number
        accuracy = clustered_mean(correct_N[in_bin_N], pairs.prompt_n[in_bin_N])
        diagram.append(Bin(float(confidence_N[in_bin_N].mean()), accuracy))
    return diagram


def expected_calibration_error(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """Return the ECE with the 95 % range of its sampling noise, from a bootstrap over prompts with fixed bins.

    Resampling increases an ECE further, so the draws are centred on the estimate. The interval describes how much the
    ECE of another sample would differ. Compare with `perfect_ece` to see whether it is more than chance.
    """
    pairs = _scored_pairs(margin_N, clusters_N)
    if not pairs.n:
        return pairs.unbounded(math.nan)
    confidence_N = confidence(pairs.margin_n)
    bin_N = _assign_bins(confidence_N, bins)
    # Bins are fixed, so a resample of prompts only adds up the gap sums of its prompts.
    gap_sums_PB = np.zeros((pairs.prompts, int(bin_N.max()) + 1))
    np.add.at(gap_sums_PB, (pairs.prompt_n, bin_N), correctness(pairs.margin_n) - confidence_N)
    ece = float(np.abs(gap_sums_PB.sum(axis=0)).sum() / pairs.n)
    if pairs.prompts < 2:
        return pairs.unbounded(ece)
    weights_DP = resample_weights(pairs.prompts)
    sampled_pairs_D = weights_DP @ np.bincount(pairs.prompt_n)
    draws_D = np.abs(weights_DP @ gap_sums_PB).sum(axis=1) / sampled_pairs_D
    # Centring removes the upward bias that resampling adds to an absolute value.
    low, high = np.quantile(draws_D - draws_D.mean(), (TAIL, 1 - TAIL))
    return Estimate(ece, max(0.0, ece + low), ece + high, pairs.n, pairs.prompts, unscored=pairs.unscored)


def perfect_ece(margin_N: ArrayLike, clusters_N: ArrayLike, bins: int = BINS) -> Estimate:
    """Return the ECE of a calibrated model with these confidences: mean and 95 % range over simulated outcomes.

    Pairs of one prompt are right or wrong together more often than by chance, because they have responses or a subject
    in common. The simulation reproduces this: a pair is right if a uniform random number is below its confidence, and
    pairs of a prompt use the same number as often as `_dependence` estimates. With one prompt the range is unbounded.
    """
    pairs = _scored_pairs(margin_N, clusters_N)
    if not pairs.n:
        return pairs.unbounded(math.nan)
    confidence_N, correct_N, prompt_N = confidence(pairs.margin_n), correctness(pairs.margin_n), pairs.prompt_n
    order = np.lexsort((prompt_N, np.round(confidence_N, TIE_DIGITS)))  # the result must not depend on the row order
    confidence_N, correct_N, prompt_N = confidence_N[order], correct_N[order], prompt_N[order]
    bin_N = _assign_bins(confidence_N, bins)
    dependence = _dependence(confidence_N, correct_N, prompt_N, bin_N)
    rng = np.random.default_rng(0)
    uniform_of_pair_DN = rng.random((DRAWS, pairs.n))
    uniform_of_prompt_DP = rng.random((DRAWS, pairs.prompts))
    # A pair uses its prompt's number with probability √dependence, so two pairs both do with probability `dependence`.
    takes_prompts_DN = rng.random((DRAWS, pairs.n)) < math.sqrt(dependence)
    uniform_DN = np.where(takes_prompts_DN, uniform_of_prompt_DP[:, prompt_N], uniform_of_pair_DN)
    sampled_correct_DN = uniform_DN < confidence_N
    gap_DN = np.where(confidence_N == 0.5, 0.0, sampled_correct_DN - confidence_N)  # a tie is always half right
    _, bin_starts = np.unique(bin_N, return_index=True)  # pairs are sorted by confidence, so each bin is contiguous
    draws_D = np.abs(np.add.reduceat(gap_DN, bin_starts, axis=1)).sum(axis=1) / pairs.n
    mean = float(draws_D.mean())
    return bootstrap_estimate(mean, draws_D, n=pairs.n, clusters=pairs.prompts, unscored=pairs.unscored, tail=TAIL)


def _dependence(confidence_N: FloatArray, correct_N: FloatArray, prompt_N: np.ndarray, bin_N: np.ndarray) -> float:
    """Estimate by moments how often two pairs of one prompt depend on the same uniform number, in [0, 1].

    Two outcomes 1[U < p] and 1[U < q] of the same number have covariance min(p, q) − pq; with two numbers it is 0. The
    estimate is therefore Σ eᵢeⱼ / Σ (min(pᵢ, pⱼ) − pᵢpⱼ) over rows i ≠ j of a prompt. Here e is correct − confidence
    minus its mean in the bin, so that miscalibration does not count as dependence. The rows are sorted by confidence.
    """
    gap_N = correct_N - confidence_N
    mean_gap_B = np.bincount(bin_N, weights=gap_N) / np.bincount(bin_N)
    residual_N = gap_N - mean_gap_B[bin_N]
    observed, greatest = 0.0, 0.0  # numerator and denominator, summed over pairs of rows
    rows_by_prompt = np.argsort(prompt_N, kind="stable")
    first_rows = np.cumsum(np.bincount(prompt_N))[:-1]
    for rows in np.split(rows_by_prompt, first_rows):
        residual_n, confidence_n = residual_N[rows], confidence_N[rows]
        observed += residual_n.sum() ** 2 - np.square(residual_n).sum()  # Σ_{i≠j} = (Σ)² − Σ of squares
        # Rows are sorted by confidence, so a row is the smaller one in its pair with every later row.
        sum_of_smaller = 2 * (confidence_n * np.arange(len(rows) - 1, -1, -1)).sum()
        sum_of_products = confidence_n.sum() ** 2 - np.square(confidence_n).sum()
        greatest += sum_of_smaller - sum_of_products
    return min(max(observed / greatest, 0.0), 1.0) if greatest > 0 else 0.0


def overconfidence(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return mean confidence minus accuracy; above 0 the model is overconfident."""
    return clustered_mean(confidence(margin_N) - correctness(margin_N), clusters_N)


def brier(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return the mean squared distance of confidence from outcome (Brier 1950); random guessing has 0.25."""
    return clustered_mean(np.square(confidence(margin_N) - correctness(margin_N)), clusters_N)


def fit_temperature(margin_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return the maximum-likelihood temperature T of σ(Δ/T); above 1 the model is overconfident.

    See arXiv:1706.04599, section 4.2. The likelihood is concave in a = 1/T. The interval is that of ln T, from the
    clustered sandwich variance of a. The likelihood has no interior maximum if every pair is ordered correctly (T → 0)
    or if the order is no better than chance (T → ∞). The estimate is then the bound of the search, without an interval.
    """
    pairs = _scored_pairs(margin_N, clusters_N)
    margin_n, prompts = pairs.margin_n, pairs.prompts
    if not margin_n.any():  # none, or all 0, for which every temperature has the same likelihood
        return pairs.unbounded(math.nan)

    def likelihood_slope(inverse: float) -> float:
        return float((margin_n * sigmoid(-inverse * margin_n)).sum())

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    # The slope falls with 1/T, so its sign at the bounds shows whether the maximum is between them.
    if likelihood_slope(low) <= 0:
        return pairs.unbounded(MAX_TEMPERATURE)
    if likelihood_slope(high) >= 0:
        return pairs.unbounded(MIN_TEMPERATURE)
    inverse = float(optimize.brentq(likelihood_slope, low, high, xtol=1e-12))
    if prompts < 2:
        return pairs.unbounded(1 / inverse)
    # Sandwich variance of 1/T: summed squares of the cluster scores over the squared information.
    miss_n = sigmoid(-inverse * margin_n)
    scores_P = np.bincount(pairs.prompt_n, weights=margin_n * miss_n)
    information = float((np.square(margin_n) * miss_n * (1 - miss_n)).sum())
    correction = prompts / (prompts - 1)  # CR1, as in `clustered_mean`
    squares = correction * float(np.square(scores_P).sum())
    error = math.sqrt(squares) / information / inverse  # of ln a, and so of ln T = −ln a
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, prompts - 1)) * error
    bounds = (math.exp(-half_width) / inverse, math.exp(half_width) / inverse)
    return Estimate(1 / inverse, *bounds, pairs.n, prompts, unscored=pairs.unscored)


def rescaled(margin_N: ArrayLike, clusters_N: ArrayLike) -> FloatArray:
    """Return margins divided by a temperature that was fitted on other prompts, (N,).

    Prompts are split at random into two halves; each half is divided by the temperature fitted on the other half.
    """
    margin_N = floats(margin_N)
    distinct, prompt_N = np.unique(cluster_labels(clusters_N), return_inverse=True)
    half_N = (np.random.default_rng(0).permutation(distinct.size) % 2)[prompt_N]
    scaled_N = margin_N.copy()
    for side in (0, 1):
        temperature = fit_temperature(margin_N[half_N != side], prompt_N[half_N != side]).mean
        # Margins without a fitted temperature stay as they are.
        scaled_N[half_N == side] /= 1.0 if math.isnan(temperature) else temperature
    return scaled_N


@dataclass(frozen=True)
class _Pairs:
    """Margins (n,) of the scored pairs, and their prompts (n,), numbered from 0."""

    margin_n: FloatArray
    prompt_n: np.ndarray
    prompts: int
    unscored: int

    @property
    def n(self) -> int:
        return self.margin_n.size

    def unbounded(self, value: float) -> Estimate:
        return Estimate(value, -math.inf, math.inf, self.n, self.prompts, unscored=self.unscored)


def _scored_pairs(margin_N: ArrayLike, clusters_N: ArrayLike) -> _Pairs:
    margin_N = floats(margin_N)
    scored_N = ~np.isnan(margin_N)
    distinct, prompt_n = np.unique(cluster_labels(clusters_N)[scored_N], return_inverse=True)
    return _Pairs(margin_N[scored_N], prompt_n, distinct.size, int((~scored_N).sum()))


def _assign_bins(confidence_N: FloatArray, bins: int) -> np.ndarray:
    """Return the bin of each pair, (N,); bin 0 is the least confident.

    Tied pairs go to the bin of their mean rank, so that the order of rows does not matter. A bin with fewer than
    PER_BIN pairs after that is merged with the bin below. Without ties, sizes differ by one or zero.
    """
    pairs = confidence_N.size
    if not pairs:
        return np.zeros(0, dtype=int)
    count = max(1, min(bins, pairs // PER_BIN))
    _, level_N, pairs_L = np.unique(np.round(confidence_N, TIE_DIGITS), return_inverse=True, return_counts=True)
    rank_L = np.cumsum(pairs_L) - (pairs_L + 1) / 2  # mean rank of each level, from 0
    # np.unique renumbers the bins, because ties may leave some of them empty.
    _, bin_L = np.unique(rank_L * count // pairs, return_inverse=True)
    # Merge the smallest bin repeatedly until every bin has PER_BIN pairs or one bin is left.
    while True:
        sizes = np.bincount(bin_L, weights=pairs_L)
        smallest = int(sizes.argmin())
        if sizes.size == 1 or sizes[smallest] >= PER_BIN:
            return bin_L[level_N]
        bin_L[bin_L >= max(smallest, 1)] -= 1  # the lowest bin is merged with the bin above
