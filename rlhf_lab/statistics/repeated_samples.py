"""What several samples per prompt are worth: pass@k, and a majority vote of k, over all subsets of k of n samples.

Both are without bias, and exact: nothing is drawn. Counts of subsets are whole numbers of any size, so that nothing
overflows and nothing is lost between them.
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
    """Probability that at least one of k samples is right, without bias (arXiv:2107.03374, eq. 1), (len(sizes),).

    1 − C(n−c, k)/C(n, k) with c right samples among n, as 1 − ∏_{i=n−c+1}^{n} (1 − k/i), which does not overflow.

    Args:
        correct_N: 1 for a right sample, 0 for a wrong one; NaN = unknown, does not count as drawn.
        sizes: values of k, at least 1.

    Returns:
        NaN where k exceeds the samples that are known.
    """
    correct_N = _outcomes(correct_N)
    _check_sizes(sizes)
    n, right = len(correct_N), int(correct_N.sum())
    values = []
    for k in sizes:
        all_wrong = 0.0 if n - right < k else float(np.prod(1.0 - k / np.arange(n - right + 1, n + 1)))
        values.append(1.0 - all_wrong if k <= n else np.nan)
    return np.array(values, dtype=np.float64)


def majority_at_k(answers: Sequence[Hashable | None], correct_N: ArrayLike, sizes: Sequence[int]) -> FloatArray:
    """Probability that the most frequent answer among k samples is right (arXiv:2203.11171), (len(sizes),).

    Answers that tie are chosen between at random. A sample without an answer has no vote; without any vote the choice
    is wrong. For each right answer and each number of its votes j, the subsets are counted in which no other answer has
    more than j votes, by how many have exactly j: those share the choice.

    Args:
        answers: what each of n samples states; equal answers are one candidate; None for a sample that states none.
        correct_N: as for `pass_at_k`; of one answer all the same, or their mean counts.
        sizes: values of k, at least 1.

    Returns:
        NaN where k exceeds the samples that are known.
    """
    correct_all = floats(correct_N)
    if len(answers) != correct_all.size:
        raise NumericError(f"a majority needs an outcome for each answer, not {correct_all.size} for {len(answers)}")
    known = [i for i in range(len(answers)) if not np.isnan(correct_all[i])]
    correct_N = _outcomes(correct_all)
    _check_sizes(sizes)
    voters = [answers[i] for i in known]
    votes = Counter(answer for answer in voters if answer is not None)
    silent = len(voters) - sum(votes.values())
    right = {
        answer: float(np.mean([correct_N[i] for i, voter in enumerate(voters) if voter == answer])) for answer in votes
    }
    values = []
    for k in sizes:
        if k > len(voters):
            values.append(np.nan)
            continue
        subsets = comb(len(voters), k)
        wins = {answer: _winning_subsets(votes, answer, silent, k) / subsets for answer in votes if right[answer]}
        values.append(sum(right[answer] * float(share) for answer, share in wins.items()))
    return np.array(values, dtype=np.float64)


def _winning_subsets(votes: Counter[Hashable], answer: Hashable, silent: int, k: int) -> Fraction:
    """Subsets of k samples in which this answer wins; one in which t others tie with it counts 1/(t + 1)."""
    total = Fraction(0)
    others = [count for other, count in votes.items() if other != answer]
    for own in range(1, min(votes[answer], k) + 1):
        # ways[ties][size]: choices of `size` samples from the others, `ties` of them with exactly `own` votes
        ways = {0: [comb(silent, size) for size in range(k - own + 1)]}
        for count in others:
            ways = _with_answer(ways, count, own)
        subsets = sum(Fraction(sizes[k - own], ties + 1) for ties, sizes in ways.items())
        total += comb(votes[answer], own) * subsets
    return total


def _with_answer(ways: dict[int, list[int]], count: int, most: int) -> dict[int, list[int]]:
    """The choices with one more answer, which `count` samples state and at most `most` chosen ones do."""
    result: dict[int, list[int]] = {}
    for ties, sizes in ways.items():
        for chosen in range(min(count, most) + 1):
            into = result.setdefault(ties + (chosen == most), [0] * len(sizes))
            factor = comb(count, chosen)
            for size in range(len(sizes) - chosen):
                into[size + chosen] += factor * sizes[size]
    return result


def _outcomes(correct_N: ArrayLike) -> FloatArray:
    """Outcomes that are known. Raises NumericError for values other than 0, 1 and NaN."""
    outcomes = floats(correct_N)
    known = outcomes[~np.isnan(outcomes)]
    if np.any((known != 0) & (known != 1)):
        raise NumericError("whether a sample is right is 0, 1 or NaN; got other values")
    return known


def _check_sizes(sizes: Sequence[int]) -> None:
    if min(sizes, default=1) < 1:
        raise NumericError(f"{min(sizes)} samples of a prompt are none; k starts at 1")
