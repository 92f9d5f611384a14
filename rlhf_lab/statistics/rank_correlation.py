"""Rank correlations between two numbers of independent units that belong to strata, with bootstrap intervals.

A unit is, for example, a reward function, and a stratum the world in which it was trained. Ranks are taken within each
stratum, so a pooled correlation does not come from differences between strata.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.resampling import TAIL, bootstrap_estimate

DRAWS = 2000
"""Number of bootstrap resamples."""
MIN_UNITS = 5
"""Minimum number of units of a stratum: below it, the ranks of a resample take too few different orders."""


@dataclass(frozen=True)
class CorrelationDifference:
    """Correlations of two predictors with the same outcome, and the difference |first| − |second|.

    The sign of the second one does not matter: a predictor is compared with the most that its rival explains.
    """

    first: Estimate
    second: Estimate
    difference: Estimate


def rank_correlation(x: ArrayLike, y: ArrayLike, strata: ArrayLike) -> Estimate:
    """Return Spearman's ρ of `x` and `y`, pooled within strata, with a percentile interval over resampled units.

    Units are resampled within their stratum, and every resample is ranked anew. Units without both numbers, and strata
    with fewer than `MIN_UNITS` others, are left out. ρ is NaN if no stratum is left or a number does not vary.

    Args:
        x, y, strata: numbers of the units, NaN if unknown, and their strata, (N,).
    """
    (x_n, y_n), stratum_n = _complete([x, y], strata)
    rows_Dn = _resamples(stratum_n)
    value = _pooled(x_n, y_n, stratum_n)
    draws_D = _pooled(x_n[rows_Dn], y_n[rows_Dn], stratum_n)
    used = len(stratum_n)
    return bootstrap_estimate(float(value), draws_D, n=used, clusters=used, unscored=len(floats(x)) - used, tail=TAIL)


def compare_predictors(
    first: ArrayLike, second: ArrayLike, outcome: ArrayLike, strata: ArrayLike
) -> CorrelationDifference:
    """Compare how strongly two predictors are correlated with an outcome, over the same units and resamples."""
    (first_n, second_n, outcome_n), stratum_n = _complete([first, second, outcome], strata)
    used = len(stratum_n)
    counts = {"n": used, "clusters": used, "unscored": len(floats(first)) - used}
    rows_Dn = _resamples(stratum_n)
    first_value = float(_pooled(first_n, outcome_n, stratum_n))
    second_value = float(_pooled(second_n, outcome_n, stratum_n))
    first_D = _pooled(first_n[rows_Dn], outcome_n[rows_Dn], stratum_n)
    second_D = _pooled(second_n[rows_Dn], outcome_n[rows_Dn], stratum_n)
    gap = abs(first_value) - abs(second_value)
    gap_D = np.abs(first_D) - np.abs(second_D)
    return CorrelationDifference(
        first=bootstrap_estimate(first_value, first_D, tail=TAIL, **counts),
        second=bootstrap_estimate(second_value, second_D, tail=TAIL, **counts),
        difference=bootstrap_estimate(gap, gap_D, tail=TAIL, **counts),
    )


def _complete(columns: list[ArrayLike], strata: ArrayLike) -> tuple[FloatArray, np.ndarray]:
    """Return (columns (V, n), stratum of each unit (n,)) of units with all numbers, in strata of enough units.

    Units of a stratum stand next to each other.
    """
    table_VN = np.stack([floats(column) for column in columns])
    names_N = np.asarray(strata).astype(str)
    known_N = np.isfinite(table_VN).all(axis=0)
    sizes = Counter(names_N[known_N])
    enough_N = np.array([sizes[name] >= MIN_UNITS for name in names_N], dtype=bool)
    kept_n = np.flatnonzero(known_N & enough_N)
    kept_n = kept_n[np.argsort(names_N[kept_n], kind="stable")]
    return table_VN[:, kept_n], names_N[kept_n]


def _resamples(stratum_n: np.ndarray) -> np.ndarray:
    """Return the rows of each resample, (DRAWS, n): each place gets a unit of its own stratum, with replacement."""
    rng = np.random.default_rng(0)
    _, counts = np.unique(stratum_n, return_counts=True)
    starts = np.cumsum(counts) - counts  # first unit of each stratum, because strata stand together
    parts = [np.empty((DRAWS, 0), dtype=int)]
    for start, count in zip(starts, counts, strict=True):
        parts.append(start + rng.integers(0, count, size=(DRAWS, count)))
    return np.concatenate(parts, axis=1)


def _pooled(x: FloatArray, y: FloatArray, stratum_n: np.ndarray) -> FloatArray:
    """Return the correlation of ranks within strata, (…,), of columns (…, n); NaN if a column is constant."""
    product, squares_x, squares_y = np.zeros((3, *x.shape[:-1]))
    for name in np.unique(stratum_n):
        rows = stratum_n == name
        ranks_x = _centred_ranks(x[..., rows])
        ranks_y = _centred_ranks(y[..., rows])
        product = product + (ranks_x * ranks_y).sum(axis=-1)
        squares_x = squares_x + (ranks_x * ranks_x).sum(axis=-1)
        squares_y = squares_y + (ranks_y * ranks_y).sum(axis=-1)
    # ranks of a constant column differ from their mean by rounding only
    varies = (squares_x > 1e-12) & (squares_y > 1e-12)
    scale = np.sqrt(np.where(varies, squares_x * squares_y, 1.0))
    return np.where(varies, np.clip(product / scale, -1.0, 1.0), np.nan)


def _centred_ranks(values: FloatArray) -> FloatArray:
    """Return the ranks of values (…, n) minus their mean. They span a range of 1 for any n.

    A large stratum therefore has no larger spread than a small one.
    """
    ranks = (rankdata(values, axis=-1) - 1) / (values.shape[-1] - 1)
    return ranks - ranks.mean(axis=-1, keepdims=True)
