"""Rank correlations between two numbers of independent units that belong to strata, with bootstrap intervals.

A unit is, for example, a reward function, and a stratum the world in which it was trained. Ranks are taken within each
stratum, so a pooled correlation does not come from differences between strata.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats

DRAWS = 2000
"""Number of bootstrap resamples."""
MIN_UNITS = 5
"""Minimum number of units of a stratum: below it, the ranks of a resample take too few different orders."""


@dataclass(frozen=True)
class Difference:
    """Difference of two correlations with the same outcome.

    Attributes:
        first, second: the two correlations, over the units that have all three numbers.
        difference: |first| − |second| with its interval. The sign of the second one does not matter, so that a
            predictor is compared with the most that its rival explains.
    """

    first: Estimate
    second: Estimate
    difference: Estimate


def rank_correlation(x: ArrayLike, y: ArrayLike, strata: ArrayLike) -> Estimate:
    """Return Spearman's ρ of `x` and `y`, pooled within strata, with a percentile interval over resampled units.

    Units are resampled within their stratum, and every resample is ranked anew. Units without both numbers, and strata
    with fewer than `MIN_UNITS` others, are left out. ρ is NaN if no stratum is left or a number does not vary.

    Args:
        x, y: numbers of the units, (N,); NaN is unknown.
        strata: stratum of each unit, (N,).
    """
    columns_2N, stratum_N = _complete([x, y], strata)
    draws_D = np.array([_pooled(columns_2N[:, rows], stratum_N[rows]) for rows in _resamples(stratum_N)])
    return _estimate(_pooled(columns_2N, stratum_N), draws_D, stratum_N, len(floats(x)))


def compare_predictors(first: ArrayLike, second: ArrayLike, outcome: ArrayLike, strata: ArrayLike) -> Difference:
    """Compare how strongly two predictors are correlated with an outcome, over the same units and resamples.

    Args:
        first, second, outcome: numbers of the units, (N,); NaN is unknown.
        strata: stratum of each unit, (N,).
    """
    columns_3N, stratum_N = _complete([first, second, outcome], strata)
    total = len(floats(first))

    def both(rows: np.ndarray) -> tuple[float, float]:
        columns, stratum = columns_3N[:, rows], stratum_N[rows]
        return _pooled(columns[[0, 2]], stratum), _pooled(columns[[1, 2]], stratum)

    values = both(np.arange(len(stratum_N)))
    draws_D2 = np.array([both(rows) for rows in _resamples(stratum_N)]).reshape(-1, 2)
    gaps_D = np.abs(draws_D2[:, 0]) - np.abs(draws_D2[:, 1])
    estimates = [_estimate(values[i], draws_D2[:, i], stratum_N, total) for i in range(2)]
    gap = _estimate(abs(values[0]) - abs(values[1]), gaps_D, stratum_N, total)
    return Difference(estimates[0], estimates[1], gap)


def _complete(columns: list[ArrayLike], strata: ArrayLike) -> tuple[FloatArray, np.ndarray]:
    """Return (columns (V, n), stratum of each unit (n,)) of the units that have all numbers, in strata that count."""
    table_VN = np.stack([floats(column) for column in columns])
    names_N = np.asarray(strata).astype(str)
    known_N = np.isfinite(table_VN).all(axis=0)
    enough_N = np.array([(known_N & (names_N == name)).sum() >= MIN_UNITS for name in names_N], dtype=bool)
    kept_N = known_N & enough_N
    return table_VN[:, kept_N], names_N[kept_N]


def _resamples(stratum_N: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each resample: as many units of each stratum as there are, drawn with replacement."""
    rng = np.random.default_rng(0)
    rows_of = [np.flatnonzero(stratum_N == name) for name in np.unique(stratum_N)]
    if not rows_of:
        return []
    return [np.concatenate([rng.choice(rows, len(rows)) for rows in rows_of]) for _ in range(DRAWS)]


def _pooled(columns_2N: FloatArray, stratum_N: np.ndarray) -> float:
    """Return the correlation of the ranks within strata, each centred and scaled to its stratum; NaN if constant."""
    ranks_2N = np.empty_like(columns_2N)
    for name in np.unique(stratum_N):
        rows = stratum_N == name
        # ranks run from 0 to 1 in every stratum, so a large stratum has no larger spread
        ranks = (rankdata(columns_2N[:, rows], axis=1) - 1) / (rows.sum() - 1)
        ranks_2N[:, rows] = ranks - ranks.mean(axis=1, keepdims=True)
    squares = (ranks_2N**2).sum(axis=1)
    if not squares.size or not (squares > 1e-12).all():
        return float("nan")
    product = (ranks_2N[0] * ranks_2N[1]).sum()
    return float(np.clip(product / np.sqrt(squares.prod()), -1.0, 1.0))


def _estimate(value: float, draws_D: FloatArray, stratum_N: np.ndarray, total: int) -> Estimate:
    """Return a value with the percentiles of its resamples. Resamples in which a number is constant are ignored."""
    used = len(stratum_N)
    known_D = draws_D[np.isfinite(draws_D)]
    if not np.isfinite(value) or not known_D.size:
        return Estimate(float("nan"), -np.inf, np.inf, used, used, unscored=total - used)
    low, high = np.quantile(known_D, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    # Percentiles need not contain the estimate itself, but `Estimate` requires the mean inside its interval.
    return Estimate(value, min(float(low), value), max(float(high), value), used, used, unscored=total - used)
