"""Agreement of two raters: the arithmetic, statsmodels, and how often the intervals are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.inter_rater import cohens_kappa

from rlhf_lab.core.errors import NumericError
from rlhf_lab.packs.judging.statistics.agreement import cohen_kappa, percent_agreement


def test_kappa_by_hand():
    # 10 items: both yes 4, both no 3, only the first yes 2, only the second 1.
    # Observed .7; chance (6·5 + 4·5)/100 = .5; κ = .2/.5 = .4.
    first = ["yes"] * 4 + ["no"] * 3 + ["yes"] * 2 + ["no"]
    second = ["yes"] * 4 + ["no"] * 3 + ["no"] * 2 + ["yes"]
    assert percent_agreement(first, second, range(10)).mean == 0.7
    assert cohen_kappa(first, second, range(10)).mean == pytest.approx(0.4)


def test_kappa_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    first_N = rng.integers(1, 6, 200)
    second_N = np.clip(first_N + rng.integers(-1, 2, 200), 1, 5)
    table_CC = np.zeros((5, 5))
    np.add.at(table_CC, (first_N - 1, second_N - 1), 1)
    theirs = cohens_kappa(table_CC)
    estimate = cohen_kappa(first_N.tolist(), second_N.tolist(), range(200))
    assert estimate.mean == pytest.approx(theirs.kappa)
    # Their interval is the asymptotic one: 200 items are enough for both to be about the same.
    assert estimate.high - estimate.low == pytest.approx(theirs.kappa_upp - theirs.kappa_low, rel=0.15)


def test_what_one_rater_left_out_is_counted_and_not_an_agreement():
    estimate = percent_agreement(["a", None, "b", None], ["a", "a", "a", None], range(4))
    assert (estimate.mean, estimate.n, estimate.unscored) == (0.5, 2, 2)
    kappa = cohen_kappa(["a", float("nan"), "b"], ["a", "b", "b"], range(3))
    assert (kappa.mean, kappa.unscored) == (1.0, 1)


def test_one_label_alone_says_nothing():
    for estimate in (cohen_kappa(["a"] * 5, ["a"] * 5, range(5)), cohen_kappa([], [], [])):
        assert math.isnan(estimate.mean) and not estimate.bounded


def test_raters_who_never_disagree_are_not_certain_to_agree():
    # 20 of 20 agree, half of them "a". Wilson's interval for 0 of 20 ends at z²/(20 + z²) = 3.8415/23.8415 = .1611.
    labels = ["a", "b"] * 10
    kappa = cohen_kappa(labels, labels, range(20))
    assert (kappa.mean, kappa.high) == (1.0, 1.0)
    assert kappa.low == pytest.approx(1 - 0.16113 / 0.5, abs=1e-4)
    assert cohen_kappa(labels * 5, labels * 5, range(100)).low > 0.9


def test_items_of_a_few_prompts_allow_as_much_disagreement_as_those_prompts():
    # 100 items of 20 prompts: Wilson's interval is that for 0 of 20, .1611 as above, and not 3.8415/103.8415 of 100.
    labels = ["a", "b"] * 50
    prompts = np.repeat(range(20), 5)
    kappa = cohen_kappa(labels, labels, prompts)
    assert (kappa.n, kappa.clusters) == (100, 20)
    assert kappa.low == pytest.approx(1 - 0.16113 / 0.5, abs=1e-4)


def covered(truth: float, rate, clusters, seed: int) -> float:
    """How often the interval of κ contains the truth, in 250 simulations of two raters."""
    rng = np.random.default_rng(seed)
    held = []
    for _ in range(250):
        labels_RN = rate(rng)
        kappa = cohen_kappa(labels_RN[0].tolist(), labels_RN[1].tolist(), clusters)
        held.append(kappa.low <= truth <= kappa.high)
    return np.mean(held)


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "items"), [(0.8, 12), (0.97, 60)])
def test_intervals_of_kappa_cover_with_few_items(accuracy: float, items: int):
    def rate(rng):
        truth_N = rng.integers(0, 2, items)
        return np.where(rng.random((2, items)) < accuracy, truth_N, 1 - truth_N)

    truth = 2 * (accuracy**2 + (1 - accuracy) ** 2) - 1
    assert covered(truth, rate, range(items), seed=3) >= 0.9


def test_wrong_labels_are_refused():
    with pytest.raises(NumericError, match="one of each per item"):
        cohen_kappa(["a"], ["a", "b"], range(2))


def test_intervals_of_kappa_cover_with_dependent_items():
    """40 prompts of three items: two raters of accuracy .8 on two labels; on half of the prompts they only guess.

    A rater is right with probability .8 or ½. Two raters agree with (.8² + .2² + .5)/2 = .59; both labels are as
    frequent, so κ in the population is (.59 − .5)/.5 = .18.
    """

    def rate(rng):
        easy_N = np.repeat(rng.random(40) < 0.5, 3)
        truth_N = rng.integers(0, 2, 120)
        right_RN = rng.random((2, 120)) < np.where(easy_N, 0.8, 0.5)
        return np.where(right_RN, truth_N, 1 - truth_N)

    smallest = stats.binom.ppf(0.001, 250, 0.95) / 250
    assert covered(0.18, rate, np.repeat(np.arange(40), 3), seed=2) >= smallest
