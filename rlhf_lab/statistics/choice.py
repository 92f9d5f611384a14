"""Selection by a score among the responses to each prompt, and agreement of its ranking with another score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats, win_or_tie
from rlhf_lab.statistics.inference import clustered_mean

Index = np.ndarray
"""Array of integers: row indices of a prompt, or counts."""


def choice_probabilities(score_N: ArrayLike, n: int) -> FloatArray:
    """Return the probability that each of the N responses to a prompt is the best of n sampled from them, (N,).

    Tied responses split their probability equally. Let S responses be scored, b of them below a response and e equal
    to it (itself included). The best of n is one of these e in (C(b+e, n) − C(b, n)) / C(S, n) of all draws. The
    product with any values equals `best_of_n.best_of_n`.

    Returns:
        probabilities; 0 for an unscored response, all NaN if fewer than n are scored.
    """
    score_N = floats(score_N)
    scored_N = ~np.isnan(score_N)
    scored = int(scored_N.sum())
    # Comparisons with NaN are False, so an unscored response is neither below nor equal to another.
    below_N = (score_N[:, None] < score_N).sum(axis=0)
    equal_N = (score_N[:, None] == score_N).sum(axis=0)
    probability_if_unscored = 0.0 if scored >= n else np.nan
    return np.where(scored_N, _probability_of_best(below_N, equal_N, scored, n), probability_if_unscored)


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
    # [j, i]: 1 if response i beats opponent j, ½ for a tie, 0 if it loses.
    outcome_NN = win_or_tie(judge_N - judge_N[:, None])
    # A response that is never chosen needs no judgement: 0 · NaN would make the sum NaN.
    wins_N = np.where(probability_NN == 0, 0.0, probability_NN * outcome_NN).sum(axis=1)
    return float(np.nanmean(wins_N)) if not np.isnan(wins_N).all() else math.nan


def rank_correlation(a_N: ArrayLike, b_N: ArrayLike, prompts: Sequence[Index]) -> Estimate:
    """Return the mean over prompts of Spearman's ρ between two scores; prompts without variation are unscored."""
    a_N, b_N = floats(a_N), floats(b_N)
    correlations = [_spearman(a_N[rows], b_N[rows]) for rows in prompts]
    return clustered_mean(correlations, np.arange(len(prompts)))


def _spearman(a_N: FloatArray, b_N: FloatArray) -> float:
    """Return Spearman's ρ over the responses that both scores have; NaN if one of them does not vary."""
    scored_N = ~(np.isnan(a_N) | np.isnan(b_N))
    a_ranks = _centred_ranks(a_N[scored_N])
    b_ranks = _centred_ranks(b_N[scored_N])
    # The norm is 0 if all ranks of one score are tied; ρ is then undefined.
    norms = math.sqrt(float(a_ranks @ a_ranks) * float(b_ranks @ b_ranks))
    return float(a_ranks @ b_ranks) / norms if norms > 0 else math.nan


def _centred_ranks(values_N: FloatArray) -> FloatArray:
    """Return average ranks minus their mean: half of (number of lower values − number of higher values)."""
    return np.sign(values_N[:, None] - values_N).sum(axis=1) / 2
