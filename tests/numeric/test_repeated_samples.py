"""pass@k and majority@k against every subset, against other estimators, and at sizes that overflow."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.best_of_n import best_of_n
from rlhf_lab.statistics.repeated_samples import majority_at_k, pass_at_k
from rlhf_lab.statistics.steps import vote_of_n


def pass_by_enumeration(correct, k):
    subsets = list(combinations(correct, k))
    return sum(max(subset) for subset in subsets) / len(subsets)


def majority_by_enumeration(answers, correct, k):
    total = 0.0
    subsets = list(combinations(range(len(answers)), k))
    for subset in subsets:
        votes = {}
        for i in subset:
            if answers[i] is not None:
                votes.setdefault(answers[i], []).append(correct[i])
        largest = max(map(len, votes.values()), default=0)
        top = [outcomes[0] for outcomes in votes.values() if len(outcomes) == largest]
        total += sum(top) / len(top) if top else 0.0
    return total / len(subsets)


def test_pass_at_k_by_hand():
    """5 samples, 2 right: pass@2 = 1 − C(3, 2)/C(5, 2) = 1 − 3/10; pass@4 = 1, since only 3 are wrong."""
    np.testing.assert_allclose(pass_at_k([1, 0, 0, 1, 0], [1, 2, 3, 4, 5]), [0.4, 0.7, 0.9, 1, 1], rtol=0, atol=1e-15)


def test_majority_by_hand():
    """Answers a, a, b, none; a is right. k = 1: 2/4. k = 2: aa 1; ab twice 1/2 each; a– twice 1 each; b– 0: of 6
    subsets 1 + 1 + 2 = 4. k = 3: aab 1, aa– 1, ab– twice 1/2: 3 of 4. k = 4: a."""
    values = majority_at_k(["a", "a", "b", None], [1, 1, 0, 0], [1, 2, 3, 4])
    np.testing.assert_allclose(values, [1 / 2, 4 / 6, 3 / 4, 1], rtol=0, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8), st.sampled_from("abc"))
def test_all_subsets(answers, key):
    correct = [float(answer == key) for answer in answers]
    sizes = range(1, len(answers) + 1)
    passed = [pass_by_enumeration(correct, k) for k in sizes]
    voted = [majority_by_enumeration(answers, correct, k) for k in sizes]
    np.testing.assert_allclose(pass_at_k(correct, sizes), passed, rtol=0, atol=1e-12)
    np.testing.assert_allclose(majority_at_k(answers, correct, sizes), voted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(best_of_n(correct, correct, sizes), passed, rtol=0, atol=1e-12)  # choosing by the truth
    rng = np.random.default_rng(0)
    full = vote_of_n(answers, correct, [1.0] * len(answers), len(answers), 1, rng)
    assert majority_at_k(answers, correct, [len(answers)])[0] == pytest.approx(full)


def test_numbers_that_overflow():
    """C(2000, 1000) has 601 digits."""
    correct = np.zeros(2000)
    correct[:3] = 1
    exact = 1 - comb(1997, 1000) / comb(2000, 1000)
    assert pass_at_k(correct, [1000])[0] == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(correct, [1])[0] == pytest.approx(3 / 2000, rel=1e-12)
    answers = ["right"] * 30 + ["wrong"] * 20 + [f"other {i}" for i in range(14)]
    right = [1.0] * 30 + [0.0] * 34
    values = majority_at_k(answers, right, [1, 2, 16, 64])
    assert values[0] == pytest.approx(30 / 64)
    assert values[1] == pytest.approx(30 / 64)  # of two votes that differ one is taken at random: as good as one
    assert 0.7 < values[2] < 1
    assert values[3] == 1


def test_unknown_samples_do_not_count_as_drawn():
    values = pass_at_k([1, np.nan, 0], [1, 2, 3])
    np.testing.assert_array_equal(values, [0.5, 1, np.nan])
    values = majority_at_k(["a", "a", "b"], [1, np.nan, 0], [1, 2, 3])
    np.testing.assert_array_equal(values, [0.5, 0.5, np.nan])
    assert np.isnan(pass_at_k([], [1])[0])


def test_nobody_votes():
    assert majority_at_k([None, None], [0, 0], [1, 2]).tolist() == [0, 0]


def test_what_is_no_outcome():
    with pytest.raises(NumericError, match=r"must be 0 \(wrong\), 1 \(right\) or NaN"):
        pass_at_k([0.5], [1])
    with pytest.raises(NumericError, match="k must be at least 1"):
        pass_at_k([1], [0])
    with pytest.raises(NumericError, match="got 2 outcomes for 1 answers"):
        majority_at_k(["a"], [1, 0], [1])
