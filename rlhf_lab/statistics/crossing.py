"""Position at which the difference between two levels changes its sign, with an interval over repetitions.

Each seed measures the difference at the same positions, such as numbers of hops. Between neighbouring positions the
difference is interpolated linearly, without a model of the whole curve. The estimate is the position at which the mean
difference is 0. The interval has every position at which a t test over seeds does not reject a difference of 0 (the
inversion of a test, as in Fieller's theorem): it contains the true crossing of the interpolated means with the stated
probability, but only if the seeds' differences are nearly normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, floats

POINTS = 2001
"""Number of positions at which the difference is tested."""
Direction = Literal["up", "down", "none", "several"]


@dataclass(frozen=True)
class Crossing:
    """Crossing of two curves over a number of seeds.

    Attributes:
        direction: `up` if the mean difference changes from negative to positive, `down` for the reverse, `none` if it
            does not change its sign, `several` if it does so more than once.
        at: position of the only change of sign; NaN without one.
        low, high: ends of the interval; −inf or inf if it reaches the first or the last position, because the crossing
            may then be beyond it. NaN if there is no position at which a difference of 0 is possible, or no test.
    """

    direction: Direction
    at: float
    low: float
    high: float
    seeds: int


def find_crossing(position_K: ArrayLike, difference_SK: ArrayLike, *, min_error_K: ArrayLike | None = None) -> Crossing:
    """Return the crossing of the mean difference with 0.

    Args:
        position_K: positions in ascending order, (K,), K ≥ 2.
        difference_SK: difference at each position for each seed, (S, K).
        min_error_K: lower bound on the standard error of the mean difference at each position, (K,): seeds that agree
            by chance say little about the next one.
    Raises:
        NumericError: positions are not ascending, or shapes do not match.
    """
    position_K = floats(position_K)
    difference_SK = np.asarray(difference_SK, dtype=np.float64)
    if len(position_K) < 2 or (np.diff(position_K) <= 0).any():
        raise NumericError(f"positions {position_K.tolist()} must be at least two, in ascending order")
    if difference_SK.ndim != 2 or difference_SK.shape[1] != len(position_K):
        raise NumericError(f"differences of shape {difference_SK.shape} do not match {len(position_K)} positions")
    seeds = len(difference_SK)
    direction, at = _sign_change(position_K, difference_SK.mean(axis=0))
    if seeds < 2:
        return Crossing(direction, at, math.nan, math.nan, seeds)
    # A t test at every point of a grid: the interval consists of those at which 0 is not rejected.
    grid_P = np.linspace(position_K[0], position_K[-1], POINTS)
    at_grid_SP = np.array([np.interp(grid_P, position_K, difference_K) for difference_K in difference_SK])
    error_P = at_grid_SP.std(axis=0, ddof=1) / math.sqrt(seeds)
    if min_error_K is not None:
        error_P = np.maximum(error_P, np.interp(grid_P, position_K, floats(min_error_K)))
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1))
    possible_P = np.abs(at_grid_SP.mean(axis=0)) <= quantile * error_P
    if not possible_P.any():
        return Crossing(direction, at, math.nan, math.nan, seeds)
    # At the first or last position the crossing may be beyond the measured range.
    low = -math.inf if possible_P[0] else float(grid_P[possible_P][0])
    high = math.inf if possible_P[-1] else float(grid_P[possible_P][-1])
    return Crossing(direction, at, low, high, seeds)


def _sign_change(position_K: FloatArray, mean_K: FloatArray) -> tuple[Direction, float]:
    """Return the direction and position of the only change of sign; "none" or "several", and NaN, without only one."""
    # A difference of exactly 0 has no sign: the change is then between its neighbours.
    signed = np.flatnonzero(mean_K != 0)
    changes = [(a, b) for a, b in pairwise(signed) if mean_K[a] * mean_K[b] < 0]
    if len(changes) != 1:
        return "several" if changes else "none", math.nan
    before, after = changes[0]
    # Zero of the line between the two points.
    fraction = mean_K[before] / (mean_K[before] - mean_K[after])
    at = float(position_K[before] + fraction * (position_K[after] - position_K[before]))
    return ("up" if mean_K[after] > 0 else "down"), at
