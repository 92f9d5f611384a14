"""What a score would choose among the replies to each prompt, and how its order compares with another's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean

Index = np.ndarray
"""Whole numbers: rows of a prompt, or counts."""


def choice_probabilities(score_N: ArrayLike, n: int) -> FloatArray:
    """Probability that each of the N replies to a prompt is the best of n drawn among them, (N,); ties share theirs.

    With b of S scored replies below a reply and e equal to it, itself included, the best of n is one of the e in
    (C(b+e, n) − C(b, n)) / C(S, n) of all draws. The product with any values is `best_of_n.best_of_n` of them. NaN
    throughout where fewer than n are scored; an unscored reply is never chosen.
    """
    score_N = floats(score_N)
    scored_N = ~np.isnan(score_N)
    scored = int(scored_N.sum())
    below_N = (score_N[:, None] < score_N).sum(axis=0)
    equal_N = (score_N[:, None] == score_N).sum(axis=0)
    probability_if_unscored = 0.0 if scored >= n else np.nan
    return np.where(scored_N, _probability_of_best(below_N, equal_N, scored, n), probability_if_unscored)


def _probability_of_best(below: Index, equal: Index, scored: int, n: int) -> FloatArray:
    """Probability of being chosen, for any shape of counts; NaN where fewer than n are scored."""
    if scored < n:
        return np.full(below.shape, np.nan)
    share_K = _share_of_draws_within_lowest(scored, n)
    return (share_K[below + equal] - share_K[below]) / np.maximum(equal, 1)


@cache
def _share_of_draws_within_lowest(scored: int, n: int) -> FloatArray:
    """C(k, n) / C(scored, n) for k = 0 … scored: the share of draws whose best is among the k lowest."""
    return np.array([math.comb(k, n) / math.comb(scored, n) for k in range(scored + 1)])


def chosen_values(probability_N: FloatArray, values_NC: FloatArray) -> FloatArray:
    """Expected value of the choice in each of C columns, (C,); NaN where a reply that may be chosen has none."""
    possible = probability_N != 0
    return probability_N[possible] @ values_NC[possible]


def chosen_win_rate(score_N: FloatArray, judge_N: FloatArray, n: int) -> float:
    """How often the best of n is better than an independent reply to the same prompt, ties half; NaN when n = N.

    Each reply is the opponent once, and the choice is made among the others: row j of the matrices is opponent j.
    """
    replies = len(score_N)
    if n >= replies:
        return math.nan
    scored_N = ~np.isnan(score_N)
    scored = int(scored_N.sum())
    less_NN = score_N[:, None] < score_N
    same_NN = score_N[:, None] == score_N
    below_NN = less_NN.sum(axis=0) - less_NN  # [j, i]: replies below i, the opponent j not counted
    equal_NN = same_NN.sum(axis=0) - same_NN
    probability_NN = np.full((replies, replies), np.nan)
    for opponent_is_scored in (False, True):  # a scored opponent leaves one scored reply less to choose among
        rows = scored_N == opponent_is_scored
        scored_left = scored - opponent_is_scored
        probability_NN[rows] = _probability_of_best(below_NN[rows], equal_NN[rows], scored_left, n)
    is_opponent_NN = np.eye(replies, dtype=bool)
    probability_NN = np.where(scored_N & ~is_opponent_NN, probability_NN, 0.0)
    outcome_NN = np.sign(judge_N - judge_N[:, None]) / 2 + 0.5
    # A reply that is never chosen needs no judgement: 0 · NaN would spoil the sum.
    wins_N = np.where(probability_NN == 0, 0.0, probability_NN * outcome_NN).sum(axis=1)
    return float(np.nanmean(wins_N)) if not np.isnan(wins_N).all() else math.nan


def rank_correlation(a_N: ArrayLike, b_N: ArrayLike, prompts: Sequence[Index]) -> Estimate:
    """Mean over prompts of Spearman's ρ among a prompt's replies; a prompt whose replies do not differ is unscored."""
    a_N, b_N = floats(a_N), floats(b_N)
    correlations = [_spearman(a_N[rows], b_N[rows]) for rows in prompts]
    return clustered_mean(correlations, np.arange(len(prompts)))


def _spearman(a_N: FloatArray, b_N: FloatArray) -> float:
    """Spearman's ρ over the replies that both score; NaN where one of them ranks nothing."""
    scored_N = ~(np.isnan(a_N) | np.isnan(b_N))
    a_ranks = _centred_ranks(a_N[scored_N])
    b_ranks = _centred_ranks(b_N[scored_N])
    norms = math.sqrt(float(a_ranks @ a_ranks) * float(b_ranks @ b_ranks))
    return float(a_ranks @ b_ranks) / norms if norms > 0 else math.nan


def _centred_ranks(values_N: FloatArray) -> FloatArray:
    """Average ranks minus their mean: half of how many are below less how many are above."""
    return np.sign(values_N[:, None] - values_N).sum(axis=1) / 2
