"""Best-of-n: the response to a prompt that a score selects, its value, its KL distance from the policy, its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats, win_or_tie
from rlhf_lab.statistics.inference import clustered_mean

Index = np.ndarray
"""Array of integers: row indices of a prompt, or counts."""


def best_of_n(proxy_N: ArrayLike, values_N: ArrayLike, sizes: Sequence[int]) -> FloatArray:
    """Return an unbiased estimate of the value of the best of n samples by `proxy`, for each n of `sizes`.

    It is the mean over all C(N, n) subsets of the N independent samples of one prompt (the estimator of
    arXiv:2112.09332, appendix I). Ties in proxy are broken at random, in expectation.

    Args:
        proxy_N: (N,) scores used for the selection. NaN = unscored: such a sample is left out.
        values_N: (N,) value of each sample, such as its gold reward or length.

    Returns:
        (len(sizes),) expected values; NaN if n exceeds the number of scored samples.
    Raises:
        NumericError: the two arrays have different lengths, or a size is below 1.
    """
    proxy_N, values_N = floats(proxy_N), floats(values_N)
    if proxy_N.shape != values_N.shape:
        raise NumericError(
            f"best-of-n needs one value per score, but got {values_N.size} values for {proxy_N.size} scores; "
            "give arrays of equal length"
        )
    if min(sizes, default=1) < 1:
        raise NumericError(f"best of {min(sizes)} is not defined; n must be at least 1")
    values_N = np.where(np.isnan(proxy_N), 0.0, values_N)  # of an unscored sample, which is never chosen
    expected = [choice_probabilities(proxy_N, n) @ values_N if n <= proxy_N.size else math.nan for n in sizes]
    return np.array(expected, dtype=np.float64)


def choice_probabilities(score_N: ArrayLike, n: int) -> FloatArray:
    """Return the probability that each of the N responses to a prompt is the best of n sampled from them, (N,).

    Tied responses split their probability equally. Let S responses be scored, b of them below a response and e equal
    to it (itself included). The best of n is one of these e in (C(b+e, n) − C(b, n)) / C(S, n) of all draws.

    Returns:
        probabilities; 0 for an unscored response, all NaN if fewer than n are scored.
    """
    score_N = floats(score_N)
    scored_N = ~np.isnan(score_N)
    ordered_n = np.sort(score_N[scored_N])
    below_N = np.searchsorted(ordered_n, score_N, side="left")
    equal_N = np.searchsorted(ordered_n, score_N, side="right") - below_N
    probability_if_unscored = 0.0 if ordered_n.size >= n else np.nan
    return np.where(scored_N, _probability_of_best(below_N, equal_N, ordered_n.size, n), probability_if_unscored)


def _probability_of_best(below: Index, equal: Index, scored: int, n: int) -> FloatArray:
    """Return the probability of being chosen, for counts of any shape; NaN if fewer than n are scored."""
    if scored < n:
        return np.full(below.shape, np.nan)
    fraction_K = _fraction_of_draws_within_lowest(scored, n)
    # An unscored response does not even equal itself; np.maximum avoids 0/0 for it.
    return (fraction_K[below + equal] - fraction_K[below]) / np.maximum(equal, 1)


@cache
def _fraction_of_draws_within_lowest(scored: int, n: int) -> FloatArray:
    """Return C(k, n) / C(scored, n) for k = 0 … scored: the fraction of draws taken from the k lowest responses."""
    draws = math.comb(scored, n)
    # a quotient of integers, because C(scored, n) may exceed the range of floats
    return np.array([math.comb(k, n) / draws for k in range(scored + 1)])


def chosen_values(probability_N: FloatArray, values_NC: FloatArray) -> FloatArray:
    """Return the expected value of the choice in each of C columns, (C,); NaN if a possible choice has no value."""
    # 0 · NaN would be NaN, so responses that are never chosen are left out of the product.
    possible = probability_N != 0
    return probability_N[possible] @ values_NC[possible]


def chosen_win_rate(score_N: FloatArray, judge_N: FloatArray, n: int) -> float:
    """Return how often the best of n beats an independent response to the same prompt; ties count half.

    Each response is the opponent once, and the choice is made among the remaining ones: row j of the matrices is
    opponent j. NaN if n equals the number of responses, because none would remain.
    """
    responses = len(score_N)
    if n >= responses:
        return math.nan
    scored_N = ~np.isnan(score_N)
    scored = int(scored_N.sum())
    less_NN = score_N[:, None] < score_N
    same_NN = score_N[:, None] == score_N
    below_NN = less_NN.sum(axis=0) - less_NN  # [j, i]: responses below i, without the opponent j
    equal_NN = same_NN.sum(axis=0) - same_NN
    probability_NN = np.full((responses, responses), np.nan)
    for opponent_is_scored in (False, True):  # a scored opponent leaves one scored response fewer to choose from
        rows = scored_N == opponent_is_scored
        scored_left = scored - opponent_is_scored
        probability_NN[rows] = _probability_of_best(below_NN[rows], equal_NN[rows], scored_left, n)
    is_opponent_NN = np.eye(responses, dtype=bool)
    probability_NN = np.where(scored_N & ~is_opponent_NN, probability_NN, 0.0)
    outcome_NN = win_or_tie(judge_N - judge_N[:, None])  # [j, i]: of response i against opponent j
    # A response that is never chosen needs no judgement: 0 · NaN would make the sum NaN.
    wins_N = np.where(probability_NN == 0, 0.0, probability_NN * outcome_NN).sum(axis=1)
    return float(np.nanmean(wins_N)) if not np.isnan(wins_N).all() else math.nan


def rank_correlation(a_N: ArrayLike, b_N: ArrayLike, prompts: Sequence[Index]) -> Estimate:
    """Return the mean over prompts of Spearman's ρ between two scores; prompts without variation are unscored."""
    both_2N = np.stack([floats(a_N), floats(b_N)])
    correlations = [_spearman(both_2N[:, rows]) for rows in prompts]
    return clustered_mean(correlations, np.arange(len(prompts)))


def _spearman(both_2N: FloatArray) -> float:
    """Return Spearman's ρ over the responses that both scores have; NaN if one of them does not vary."""
    scored_2n = both_2N[:, ~np.isnan(both_2N).any(axis=0)]
    ranks_2n = rankdata(scored_2n, axis=1) - (scored_2n.shape[1] + 1) / 2
    norms = math.sqrt(np.square(ranks_2n).sum(axis=1).prod())  # exact for equal ranks, so that ρ is then 1
    return float(ranks_2n[0] @ ranks_2n[1]) / norms if norms > 0 else math.nan


def best_of_n_kl(n: int) -> float:
    """Return KL(best of n ‖ sampling policy) in nats: ln n − (n−1)/n.

    It is exact if no two responses tie in proxy or repeat, and an upper bound otherwise (arXiv:2401.01879).
    """
    return math.log(n) - (n - 1) / n
