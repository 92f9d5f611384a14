"""Tests that hold at every look: the arithmetic, their properties, and the calibration of the table."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.sequential import (
    BOUNDARIES,
    LAST,
    Looks,
    beyond_p,
    boundary_of,
    discordant_p,
    level_of,
    looks_at,
    one_sided_p,
    same_p,
    sequential_interval,
    smaller_p,
)


def interpolated(q: float) -> float:
    """Interpolate the table of boundaries on log scales by hand."""
    low, high = next((a, b) for a, b in pairwise(BOUNDARIES) if a[1] <= q <= b[1])
    part = math.log(q / low[1]) / math.log(high[1] / low[1])
    return math.exp(math.log(low[0]) + part * math.log(high[0] / low[0]))


def test_p_values_by_hand():
    # Differences 1, 2, 3, 2. After three: mean 2, sd 1, error 1/√3, t = 2√3 on 2 degrees of freedom, so
    # p = (1 − t/√(t² + 2))/2 = (1 − √12/√14)/2 = .03709, and w_3 = 1.
    # After four: mean 2, variance 2/3, error √(2/3)/2, t = 2√6 on 3 degrees of freedom, so with x = t/√3 = 2√2
    # p = 1/2 − (arctan x + x/(1 + x²))/π = .00814, and w_4 = √(3/4): q = .00940.
    after_three = (1 - math.sqrt(12 / 14)) / 2
    x = 2 * math.sqrt(2)
    after_four = (0.5 - (math.atan(x) + x / (1 + x**2)) / math.pi) / math.sqrt(3 / 4)
    assert (after_three, after_four) == pytest.approx((0.03709, 0.00940), abs=1e-5)
    p_L = one_sided_p(looks_at([1.0, 2.0, 3.0, 2.0]))
    assert p_L[:2].tolist() == [1, 1]  # one and two differences test nothing
    assert p_L[2:] == pytest.approx([interpolated(after_three), interpolated(after_four)])
    assert beyond_p(looks_at([1.0, 2.0, 3.0, 2.0]), 0.0) == pytest.approx(np.minimum(1, 2 * p_L))
    # The later look of 3.0001, .0001 and so on is worse than the first; the smallest so far counts.
    assert one_sided_p(looks_at([1.0, 2.0, 3.0, -9.0]))[3] == p_L[2]


def test_a_margin_shifts_the_differences():
    gaps = np.array([0.3, -0.2, 0.1, 0.4, 0.0])
    looks = looks_at(gaps)
    within = np.maximum(one_sided_p(looks_at(gaps + 1)), one_sided_p(looks_at(1 - gaps)))
    assert same_p(looks, 1.0) == pytest.approx(within)
    assert beyond_p(looks, 0.1) == pytest.approx(
        np.minimum(1, 2 * np.minimum(one_sided_p(looks_at(gaps - 0.1)), one_sided_p(looks_at(-gaps - 0.1))))
    )
    assert smaller_p(looks, -0.8) == pytest.approx(one_sided_p(looks_at(gaps + 0.8)))
    assert smaller_p(looks, 0.8) == pytest.approx(one_sided_p(looks_at(0.8 - gaps)))


def test_the_interval_is_the_inverted_test():
    looks = looks_at(np.random.default_rng(0).normal(1, 1, size=9))
    low_L, high_L = sequential_interval(looks)
    assert np.isinf(low_L[:2]).all() and np.isinf(high_L[:2]).all()
    for position in range(2, 9):
        inside, outside = low_L[position] + 1e-6, low_L[position] - 1e-6
        assert one_sided_p(looks, inside)[position] > 0.025 > one_sided_p(looks, outside)[position]
        inside, outside = high_L[position] - 1e-6, high_L[position] + 1e-6
        assert one_sided_p(looks.negated(), -inside)[position] > 0.025
        assert one_sided_p(looks.negated(), -outside)[position] < 0.025


def test_p_values_never_rise_and_skipped_looks_only_raise_them():
    looks = looks_at(np.random.default_rng(1).normal(0.5, 1, size=(20, 40)))
    p_NL = beyond_p(looks, 0.0)
    assert (np.diff(p_NL, axis=-1) <= 0).all()
    every_third = Looks(looks.mean_L[:, 2::3], looks.error_L[:, 2::3], looks.count_L[2::3])
    assert (beyond_p(every_third, 0.0) >= p_NL[:, 2::3]).all()


def test_the_least_standard_deviation_holds_at_every_look():
    # Equal differences of 1 with a least sd of 1: error 1/√k, so t = √3 on 2 degrees of freedom, then t = 2 on 3.
    looks = looks_at([1.0, 1.0, 1.0, 1.0], min_sd=1.0)
    assert looks.error_L[2:] == pytest.approx([1 / math.sqrt(3), 0.5])
    p = stats.t.sf([math.sqrt(3), 2], [2, 3]) / np.array([1, math.sqrt(3 / 4)])
    assert one_sided_p(looks)[2:] == pytest.approx([interpolated(value) for value in p])


def test_a_difference_without_error_is_exact():
    looks = looks_at([0.5, 0.5, 0.5])
    assert one_sided_p(looks)[-1] == 0
    assert one_sided_p(looks, 0.5)[-1] == 1
    assert same_p(looks, 0.6)[-1] == 0
    assert beyond_p(looks, 0.6)[-1] == 1


def test_discordant_pairs_by_hand():
    # One pair won by the first side: E = ∫ 2θ · 2/π · θ^−½ (1 − θ)^−½ dθ over (½, 1) = 1 + 2/π.
    assert discordant_p([1], [0]) == pytest.approx([1 / (1 + 2 / math.pi)])
    assert discordant_p([0], [1]) == pytest.approx([1.0])  # E = 1 − 2/π < 1
    assert discordant_p([7], [0])[0] == pytest.approx(1 / 53.5, rel=0.01)
    assert discordant_p([0, 7, 7], [0, 0, 9])[2] == discordant_p([7], [0])[0]  # the largest so far counts
    assert discordant_p([3], [0]) < discordant_p([3], [1])

    def e_value(b: int, c: int) -> float:
        density = stats.beta(0.5, 0.5).pdf
        theta = 1 - np.linspace(0, math.sqrt(0.5), 200_001)[1:] ** 2  # substitution 1 − θ = s² removes the pole at 1
        values = (2 * theta) ** b * (2 * (1 - theta)) ** c * 2 * density(theta) * 2 * np.sqrt(1 - theta)
        return float(np.trapezoid(values, np.sqrt(1 - theta)))

    assert 1 / discordant_p([5], [1])[0] == pytest.approx(e_value(5, 1), rel=1e-3)
    # Under the hypothesis the next pair is a coin flip, and E is a martingale.
    for b, c in ((0, 0), (2, 1), (6, 2)):
        assert e_value(b, c) == pytest.approx((e_value(b + 1, c) + e_value(b, c + 1)) / 2, rel=1e-3)


def test_the_table_is_that_of_studies_without_an_effect():
    """200 seeds of 4,000 studies: 5 % of one-sided p-values are below .05, 20 % below .2."""
    looks = looks_at(np.random.default_rng(2).standard_normal((4000, LAST)))
    p_N = one_sided_p(looks)[:, -1]
    for level in (0.05, 0.2):
        assert np.mean(p_N <= level) == pytest.approx(level, abs=3.5 * math.sqrt(level * (1 - level) / 4000))


def test_levels_and_boundaries_are_inverse_and_small_ones_are_bounded():
    for level in (0.0003, 0.025, 0.4):
        assert level_of(boundary_of(level)) == pytest.approx(level)
    # Below the table, Bonferroni over all looks: Σ √(3/k) for k = 3 … 200.
    bound = sum(math.sqrt(3 / k) for k in range(3, LAST + 1))
    assert level_of(1e-9) == pytest.approx(1e-9 * bound)
    q = np.geomspace(1e-12, 1, 500)
    assert (np.diff(level_of(q)) >= 0).all()
    assert (level_of(q) >= q * 0.999999).all()


def test_impossible_input_is_refused():
    with pytest.raises(NumericError, match="give one of each per look"):
        Looks(np.zeros(3), np.ones(3), np.arange(2.0))
    with pytest.raises(NumericError, match="give the looks in order"):
        Looks(np.zeros(2), np.ones(2), np.array([4.0, 3.0]))
    with pytest.raises(NumericError, match="has no direction"):
        smaller_p(looks_at([1.0, 2.0, 3.0]), 0.0)
    with pytest.raises(NumericError, match="outside the table"):
        boundary_of(1e-6)
