"""Rank correlations within strata, against scipy and by hand, and how often their intervals contain the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.statistics import rank_correlation as module
from rlhf_lab.statistics.rank_correlation import compare_predictors, rank_correlation


def test_one_stratum_is_spearman():
    rng = np.random.default_rng(0)
    x_N = rng.normal(size=30)
    y_N = np.round(x_N + rng.normal(size=30), 1)  # rounded, so that there are ties
    estimate = rank_correlation(x_N, y_N, ["a"] * 30)
    assert estimate.mean == pytest.approx(stats.spearmanr(x_N, y_N).statistic)
    assert (estimate.n, estimate.unscored) == (30, 0)
    assert estimate.low < estimate.mean < estimate.high


def test_strata_are_pooled_within():
    """Ranks of stratum a: x 1 2 3 4 5, y 1 2 3 5 4; of b: y reversed at the first two.

    Centred and divided by 4, both x have squares (4 + 1 + 0 + 1 + 4)/16 = 10/16. Products: a (4 + 1 + 0 + 2 + 2)/16 =
    9/16 in full: (−2)(−2) + (−1)(−1) + 0 + (1)(2) + (2)(1) = 9; b: (−2)(−1) + (−1)(−2) + 0 + 1 + 4 = 9. ρ = 18/20.
    The values of b are far above those of a, in the opposite order for y, which changes nothing.
    """
    x = [1, 2, 3, 4, 5, 101, 102, 103, 104, 105]
    y = [1, 2, 3, 5, 4, -98, -99, -97, -96, -95]
    strata = ["a"] * 5 + ["b"] * 5
    assert rank_correlation(x, y, strata).mean == pytest.approx(0.9)


def test_units_without_a_number_and_small_strata_are_left_out():
    x = [1, 2, 3, 4, 5, 6, 1, 2]
    y = [1, 2, 3, 4, np.nan, 6, 2, 1]
    estimate = rank_correlation(x, y, ["a"] * 6 + ["b"] * 2)
    assert estimate.mean == pytest.approx(1) and (estimate.n, estimate.unscored) == (5, 3)
    nothing = rank_correlation(x[:4], y[:4], ["a"] * 4)
    assert np.isnan(nothing.mean) and nothing.n == 0 and nothing.unscored == 4
    assert np.isnan(rank_correlation([1.0] * 6, range(6), ["a"] * 6).mean)  # a constant has no ranks


def test_a_difference_is_of_sizes_over_the_same_units():
    x = np.arange(8.0)
    rival = np.array([0, 1, 2, 3, 4, 5, 7, 6, 9.0])[:8]
    outcome = -x
    outcome[0] = np.nan
    compared = compare_predictors(x, rival, outcome, ["a"] * 8)
    assert compared.first.mean == pytest.approx(-1)
    expected = stats.spearmanr(rival[1:], outcome[1:]).statistic
    assert compared.second.mean == pytest.approx(expected) and expected < 0
    assert compared.difference.mean == pytest.approx(1 - abs(expected))
    assert compared.difference.n == 7


def test_intervals_contain_the_truth(monkeypatch):
    """200 samples of 24 units in two strata whose Pearson correlation is r = .8; ρ is then 6/π·asin(r/2)."""
    monkeypatch.setattr(module, "DRAWS", 200)
    rho = 6 / np.pi * np.arcsin(0.8 / 2)
    rng = np.random.default_rng(1)
    strata = np.repeat(["a", "b"], 12)
    inside = []
    for _ in range(200):
        x_N = rng.normal(size=24)
        y_N = 0.8 * x_N + 0.6 * rng.normal(size=24)
        estimate = rank_correlation(x_N, y_N, strata)
        inside.append(estimate.low <= rho <= estimate.high)
    # at 95 % coverage, 200 samples give below .88 with a probability of about 10⁻⁴
    assert np.mean(inside) >= 0.88


def test_units_are_resampled_within_their_stratum():
    """Ranks agree within both strata, so they agree in every resample; units of the other stratum would disagree."""
    first = np.arange(6.0)
    x = np.concatenate([first, first + 100])
    y = np.concatenate([first, first - 100])
    estimate = rank_correlation(x, y, ["a"] * 6 + ["b"] * 6)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((1.0, 1.0, 1.0))
