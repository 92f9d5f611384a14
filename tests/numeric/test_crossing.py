"""Position at which a difference changes its sign: arithmetic on the page, open ends, and how often intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.crossing import find_crossing


def test_the_mean_crosses_between_two_positions():
    # means −.1, −.05, .15: between 4 and 6 the line is −.05 + .1·(x − 4), which is 0 at 4.5
    found = find_crossing([2, 4, 6], [[-0.1, -0.05, 0.15]])
    assert (found.direction, found.seeds) == ("up", 1)
    assert found.at == pytest.approx(4.5)
    assert math.isnan(found.low)
    down = find_crossing([2, 4], [[0.3, -0.1]])
    assert (down.direction, down.at) == ("down", pytest.approx(3.5))


def test_the_interval_inverts_the_t_test():
    # Two seeds with the lines x − 4 and x − 5: the mean is x − 4.5 and the standard error .5 everywhere.
    # |x − 4.5| ≤ 12.706 · .5 = 6.353, so the interval is [−1.853, 10.853].
    positions = np.array([-10.0, 20.0])
    found = find_crossing(positions, np.array([positions - 4, positions - 5]))
    quantile = stats.t.ppf(0.975, 1)
    assert found.at == pytest.approx(4.5)
    assert found.low == pytest.approx(4.5 - 0.5 * quantile, abs=0.02)
    assert found.high == pytest.approx(4.5 + 0.5 * quantile, abs=0.02)


def test_a_floor_widens_the_interval():
    positions = np.array([0.0, 10.0])
    lines = np.array([positions - 5, positions - 5, positions - 5])
    exact, floored = find_crossing(positions, lines), find_crossing(positions, lines, min_error_K=[0.5, 0.5])
    # t with 2 degrees of freedom: 4.303 · .5 = 2.151
    assert exact.high - exact.low < 0.02
    assert (floored.low, floored.high) == (pytest.approx(5 - 2.151, abs=0.01), pytest.approx(5 + 2.151, abs=0.01))


def test_open_ends():
    noise = np.array([[0.3], [-0.3], [0.1]])
    found = find_crossing([2, 4], np.array([-0.01, 0.01]) + noise)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_no_crossing_and_several():
    assert find_crossing([1, 2, 3], [[0.1, 0.2, 0.3]]).direction == "none"
    assert find_crossing([1, 2, 3], [[0, 0, 0]]).direction == "none"
    several = find_crossing([1, 2, 3], [[0.1, -0.2, 0.3]])
    assert several.direction == "several" and math.isnan(several.at)
    touching = find_crossing([1, 2, 3], [[-0.1, 0.0, 0.1]])
    assert (touching.direction, touching.at) == ("up", pytest.approx(2.0))
    touches_and_returns = find_crossing([1, 2, 3], [[0.1, 0.0, 0.1]])
    assert touches_and_returns.direction == "none"


def test_intervals_cover_the_crossing():
    rng = np.random.default_rng(0)
    positions, means = np.array([2.0, 4.0, 6.0, 8.0]), np.array([-0.1, -0.05, 0.1, 0.3])
    truth = 4 + 2 / 3  # −.05 + .15·(x − 4)/2 = 0
    covered = 0
    for _ in range(2000):
        found = find_crossing(positions, means + 0.05 * rng.standard_normal((5, 4)))
        covered += found.low <= truth <= found.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("positions", "differences", "message"),
    [
        ([2], [[0.1]], "at least two"),
        ([2, 2], [[0.1, 0.2]], "ascending"),
        ([2, 4], [[0.1, 0.2, 0.3]], r"shape \(1, 3\)"),
    ],
)
def test_wrong_input(positions, differences, message):
    with pytest.raises(NumericError, match=message):
        find_crossing(positions, differences)
