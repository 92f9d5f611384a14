"""Pass@k and majority vote of k, computed exactly over all subsets of k of n samples per prompt.

Both estimates are unbiased and need no random draws. Counts of subsets are Python integers, so that nothing overflows
and no precision is lost in between.
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
    known = [i for i in range(len(answers)) if not np.isnan(correct_all[i])]
    correct_N = _outcomes(correct_all)
    _check_sizes(sizes)
    voters = [answers[i] for i in known]
    votes = Counter(answer for answer in voters if answer is not None)
    # Number of samples without an answer.
    silent = len(voters) - sum(votes.values())
    right: dict[Hashable, float] = {}
    for answer in votes:
        outcomes = [correct_N[i] for i, voter in enumerate(voters) if voter == answer]
        right[answer] = float(np.mean(outcomes))
    values = []
    for k in sizes:
        if k > len(voters):
            values.append(np.nan)
            continue
        subsets = comb(len(voters), k)
        contributions = []
        for answer in votes:
            if right[answer]:  # wrong answers add nothing, so their subsets need not be counted
                fraction = _winning_subsets(votes, answer, silent, k) / subsets
                contributions.append(right[answer] * float(fraction))
        values.append(sum(contributions))
    return np.array(values, dtype=np.float64)


def _winning_subsets(votes: Counter[Hashable], answer: Hashable, silent: int, k: int) -> Fraction:
    """Count subsets of k samples in which this answer wins; one in which t others tie with it counts 1/(t + 1)."""
    total = Fraction(0)
    others = [count for other, count in votes.items() if other != answer]
    # Sum over the number of votes that this answer has in the subset.
    for own in range(1, min(votes[answer], k) + 1):
        # ways[ties][size]: number of choices of `size` samples from the others, `ties` of them with `own` votes
        ways = {0: [comb(silent, size) for size in range(k - own + 1)]}
        for count in others:
            ways = _with_answer(ways, count, own)
        winning = [Fraction(sizes[k - own], ties + 1) for ties, sizes in ways.items()]
        subsets = sum(winning)
        total += comb(votes[answer], own) * subsets
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
    """Raise NumericError for a size below 1."""
    if min(sizes, default=1) < 1:
        raise NumericError(f"k = {min(sizes)} samples per prompt is not possible; k must be at least 1")
