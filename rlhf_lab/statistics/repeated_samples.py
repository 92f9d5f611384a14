"""Several samples per prompt: pass@k and the majority vote of k, exact over all subsets of k of n, and a balance score.

The first two are unbiased and need no random draws. Counts of subsets are Python integers, so that nothing overflows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import floats


def pass_at_k(correct_N: ArrayLike, sizes: Sequence[int]) -> FloatArray:
    """Return an unbiased estimate of the probability that at least one of k samples is right, (len(sizes),).

    It is 1 − C(n−c, k)/C(n, k) with c right samples among n (arXiv:2107.03374, eq. 1). It is computed as
    1 − ∏_{i=n−c+1}^{n} (1 − k/i), which does not overflow.

    Args:
        correct_N: (N,) 1 for a right sample, 0 for a wrong one; NaN = unknown, left out.
        sizes: values of k ≥ 1.

    Returns:
        probabilities; NaN if k exceeds the number of known samples.
    """
    correct_N = _outcomes(correct_N)
    _check_sizes(sizes)
    n, right = len(correct_N), int(correct_N.sum())
    values = []
    for k in sizes:
        all_wrong = 0.0  # fewer than k wrong samples: every subset has a right one
        if n - right >= k:
            i = np.arange(n - right + 1, n + 1)  # of the product in the docstring
            all_wrong = float(np.prod(1.0 - k / i))
        values.append(1.0 - all_wrong if k <= n else np.nan)
    return np.array(values, dtype=np.float64)


def majority_at_k(answers: Sequence[Hashable | None], correct_N: ArrayLike, sizes: Sequence[int]) -> FloatArray:
    """Return the probability that the most frequent answer among k samples is right, (len(sizes),).

    Ties between answers are broken at random (majority voting: arXiv:2203.11171). A sample without an answer has no
    vote; without any vote the choice is wrong. For each right answer and each number j of its votes, the function
    counts the subsets in which no other answer has more than j votes. A subset in which t other answers also have j
    votes counts 1/(t + 1).

    Args:
        answers: answer of each of n samples; equal answers are one candidate; None for a sample without an answer.
        correct_N: (N,) outcomes as for `pass_at_k`; if they differ between samples of one answer, their mean counts.
        sizes: values of k ≥ 1.

    Returns:
        probabilities; NaN if k exceeds the number of known samples.
    """
    correct_all = floats(correct_N)
    if len(answers) != correct_all.size:
        raise NumericError(
            f"a majority vote needs one outcome per answer, but got {correct_all.size} outcomes for {len(answers)} "
            "answers; give sequences of equal length"
        )
    correct_N = _outcomes(correct_all)
    _check_sizes(sizes)
    voters = [answer for answer, outcome in zip(answers, correct_all, strict=True) if not np.isnan(outcome)]
    votes = Counter(answer for answer in voters if answer is not None)
    silent = len(voters) - sum(votes.values())
    right = {}
    for answer in votes:
        right[answer] = float(np.mean([correct_N[i] for i, voter in enumerate(voters) if voter == answer]))

    def probability(k: int) -> float:
        subsets = comb(len(voters), k)
        # Wrong answers add nothing, so their subsets need not be counted.
        winning = {answer: _winning_subsets(votes, answer, silent, k) for answer in votes if right[answer]}
        return sum(right[answer] * float(count / subsets) for answer, count in winning.items())

    return np.array([probability(k) if k <= len(voters) else np.nan for k in sizes], dtype=np.float64)


def _winning_subsets(votes: Counter[Hashable], answer: Hashable, silent: int, k: int) -> Fraction:
    """Count subsets of k samples in which this answer wins; one in which t others tie with it counts 1/(t + 1)."""
    total = Fraction(0)
    others = [count for other, count in votes.items() if other != answer]
    for own in range(1, min(votes[answer], k) + 1):  # votes that this answer has in the subset
        # ways[ties][size]: number of choices of `size` samples from the others, `ties` of them with `own` votes
        ways = {0: [comb(silent, size) for size in range(k - own + 1)]}
        for count in others:
            ways = _with_answer(ways, count, own)
        total += comb(votes[answer], own) * sum(Fraction(sizes[k - own], ties + 1) for ties, sizes in ways.items())
    return total


def _with_answer(ways: dict[int, list[int]], count: int, limit: int) -> dict[int, list[int]]:
    """Extend the choices by one more answer that `count` samples state, with up to `limit` of them chosen.

    This is one step of a dynamic programme: `ways` maps ties → number of choices by size, as in `_winning_subsets`.
    """
    result: dict[int, list[int]] = {}
    for ties, sizes in ways.items():
        for chosen in range(min(count, limit) + 1):  # with more than `limit`, this answer would win
            into = result.setdefault(ties + (chosen == limit), [0] * len(sizes))
            factor = comb(count, chosen)
            for size in range(len(sizes) - chosen):
                into[size + chosen] += factor * sizes[size]
    return result


def _outcomes(correct_N: ArrayLike) -> FloatArray:
    """Return the known outcomes. Raise NumericError for values other than 0, 1 and NaN."""
    outcomes = floats(correct_N)
    known = outcomes[~np.isnan(outcomes)]
    if np.any((known != 0) & (known != 1)):
        raise NumericError("the outcome of a sample must be 0 (wrong), 1 (right) or NaN (unknown); got other values")
    return known


def _check_sizes(sizes: Sequence[int]) -> None:
    if min(sizes, default=1) < 1:
        raise NumericError(f"k = {min(sizes)} samples per prompt is not possible; k must be at least 1")


def balance_score(right: Sequence[int], selected: Sequence[int], target: int) -> float:
    """Return B-STaR's balance score (arXiv:2412.17256): the mean over prompts of min(right/target, 1) · right/selected.

    The first factor is exploration, enough right solutions to learn from; the second is exploitation, the fraction of
    the selection that is right. A prompt without a selected solution counts 0.

    Args:
        right: number of distinct right solutions among the selected ones of each prompt.
        selected: number of distinct selected solutions of each prompt.
        target: number of distinct right solutions per prompt that is enough.
    """
    pairs = zip(right, selected, strict=True)
    return float(np.mean([min(found / target, 1.0) * found / chosen if chosen else 0.0 for found, chosen in pairs]))
