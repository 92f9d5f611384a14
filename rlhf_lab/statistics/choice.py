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
    scored = ~np.isnan(score_N)
    below_N, equal_N = ((score_N[:, None] < score_N).sum(axis=0), (score_N[:, None] == score_N).sum(axis=0))
    unchosen = 0.0 if scored.sum() >= n else np.nan
    return np.where(scored, _share(below_N, equal_N, int(scored.sum()), n), unchosen)


def _share(below: Index, equal: Index, scored: int, n: int) -> FloatArray:
    """Probability of being chosen, for any shape of counts; NaN where fewer than n are scored."""
    if scored < n:
        return np.full(below.shape, np.nan)
    at_most_K = _at_most(scored, n)
    return (at_most_K[below + equal] - at_most_K[below]) / np.maximum(equal, 1)


@cache
def _at_most(scored: int, n: int) -> FloatArray:
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
    if n >= len(score_N):
        return math.nan
    scored, own = ~np.isnan(score_N), np.eye(len(score_N), dtype=bool)
    less_NN, same_NN = score_N[:, None] < score_N, score_N[:, None] == score_N
    below_NN, equal_NN = less_NN.sum(axis=0) - less_NN, same_NN.sum(axis=0) - same_NN
    share_NN = np.full(own.shape, np.nan)
    for removed in (False, True):
        rows = scored == removed
        share_NN[rows] = _share(below_NN[rows], equal_NN[rows], int(scored.sum()) - removed, n)
    share_NN = np.where(scored & ~own, share_NN, 0.0)
    outcome_NN = np.sign(judge_N - judge_N[:, None]) / 2 + 0.5
    wins_N = np.where(share_NN == 0, 0.0, share_NN * outcome_NN).sum(axis=1)
    return float(np.nanmean(wins_N)) if not np.isnan(wins_N).all() else math.nan


def rank_correlation(a_N: ArrayLike, b_N: ArrayLike, prompts: Sequence[Index]) -> Estimate:
    """Mean over prompts of Spearman's ρ among a prompt's replies; a prompt whose replies do not differ is unscored."""
    a_N, b_N = floats(a_N), floats(b_N)
    return clustered_mean([_spearman(a_N[index], b_N[index]) for index in prompts], np.arange(len(prompts)))


def _spearman(a_N: FloatArray, b_N: FloatArray) -> float:
    both = ~(np.isnan(a_N) | np.isnan(b_N))
    a, b = (_centred_ranks(values_N[both]) for values_N in (a_N, b_N))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size > 0 else math.nan


def _centred_ranks(values_N: FloatArray) -> FloatArray:
    """Average ranks minus their mean: half of how many are below less how many are above."""
    return np.sign(values_N[:, None] - values_N).sum(axis=1) / 2
