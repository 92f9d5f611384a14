"""How scores of replies move together: overall, within prompts, and with a third column held fixed.

Within a prompt is what matters to a policy: a reward that likes one prompt's replies better than another's teaches
nothing. Everything here is a function of sums of products of columns, per prompt; a bootstrap over prompts only weighs
these sums anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats

DRAWS = 1000
"""Bootstrap resamples."""
Statistic = Callable[[FloatArray], FloatArray]
"""(…, V, V) sums of products → (…,)."""


@dataclass(frozen=True)
class Products:
    """Sums of products of V columns for each of P prompts.

    Attributes:
        names: of the columns.
        sums_PVV: Σ over a prompt's replies of column · column.
        n: replies that count.
        unscored: replies left out because a column is NaN there.
        free_mean: whether the last column, besides those named, is of ones: every draw then has a mean of its own.
    """

    names: tuple[str, ...]
    sums_PVV: FloatArray
    n: int
    unscored: int
    free_mean: bool = False

    def estimate(self, statistic: Statistic) -> Estimate:
        """A statistic with the percentile interval of a bootstrap over prompts; NaN when it is not defined."""
        prompts = len(self.sums_PVV)
        value = float(statistic(self._centred(self.sums_PVV.sum(axis=0)))) if prompts else math.nan
        if prompts < 2 or math.isnan(value):
            return Estimate(value, -math.inf, math.inf, self.n, prompts, unscored=self.unscored)
        weights_DP = np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
        resampled_sums_DVV = np.tensordot(weights_DP, self.sums_PVV, axes=1)
        draws_D = statistic(self._centred(resampled_sums_DVV))
        low, high = np.nanquantile(draws_D, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        # Percentiles need not surround the estimate itself, and an `Estimate` has to lie inside its interval.
        return Estimate(value, min(float(low), value), max(float(high), value), self.n, prompts, unscored=self.unscored)

    def correlation(self, first: str, second: str, given: str | None = None) -> Estimate:
        """Correlation of two columns, or of what a regression on `given` leaves of them."""
        return self.estimate(lambda sums: _correlation(*self._products_of(sums, first, second, given)))

    def slope(self, outcome: str, cause: str, given: str | None = None) -> Estimate:
        """Least squares: change of `outcome` per unit of `cause`, with `given` held fixed."""
        return self.estimate(lambda sums: _slope(*self._products_of(sums, outcome, cause, given)))

    def _centred(self, sums_VV: FloatArray) -> FloatArray:
        """The sums about the mean of the draw: a regression on the column of ones takes the mean out."""
        return held_fixed(sums_VV, -1) if self.free_mean else sums_VV

    def _products_of(
        self, sums: FloatArray, first: str, second: str, given: str | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(first·second, first·first, second·second) after a regression of both columns on `given`."""
        i = self.names.index(first)
        j = self.names.index(second)
        residual_sums = sums if given is None else held_fixed(sums, self.names.index(given))
        first_squares = _unless_rounding(residual_sums[..., i, i], np.maximum(sums[..., i, i], 0.0))
        second_squares = _unless_rounding(residual_sums[..., j, j], np.maximum(sums[..., j, j], 0.0))
        return residual_sums[..., i, j], first_squares, second_squares


def within_prompts(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> Products:
    """Products of the (N,) columns less their mean over each prompt's replies."""
    table_NV, prompt_N, unscored = _scored_rows(columns, prompts_N)
    means_PV = np.zeros((_prompt_count(prompt_N), len(columns)))
    np.add.at(means_PV, prompt_N, table_NV)
    means_PV /= np.bincount(prompt_N)[:, None] if prompt_N.size else 1
    centred_NV = table_NV - means_PV[prompt_N]
    return Products(tuple(columns), _sums_by_prompt(centred_NV, prompt_N), len(table_NV), unscored)


def overall(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike, *, ranks: bool = False) -> Products:
    """Products of the (N,) columns less their mean over all replies.

    With `ranks` the correlation is Spearman's; the ranks are held fixed in the bootstrap.
    """
    table_NV, prompt_N, unscored = _scored_rows(columns, prompts_N)
    if len(table_NV):
        table_NV = rankdata(table_NV, axis=0) if ranks else table_NV
        table_NV = table_NV - table_NV.mean(axis=0)
    ones_N1 = np.ones((len(table_NV), 1))
    table_NV = np.concatenate([table_NV, ones_N1], axis=1)
    return Products(tuple(columns), _sums_by_prompt(table_NV, prompt_N), len(table_NV), unscored, free_mean=True)


def held_fixed(sums_VV: FloatArray, column: int) -> FloatArray:
    """Products of what a regression on one column leaves of the others: S − s·sᵀ/s_kk; unchanged when s_kk is 0."""
    row = sums_VV[..., column, :]
    squares = row[..., column, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(squares > 0, row[..., :, None] * row[..., None, :] / squares, 0.0)
    return sums_VV - explained


def _unless_rounding(remaining: FloatArray, original: FloatArray) -> FloatArray:
    """What is left of a column's sum of squares; NaN where that is nothing but rounding of the original."""
    return np.where(remaining > 1e-9 * original + 1e-15, remaining, np.nan)


def _correlation(product: FloatArray, first_squares: FloatArray, second_squares: FloatArray) -> FloatArray:
    """NaN when a column does not vary."""
    return np.clip(product / np.sqrt(first_squares * second_squares), -1.0, 1.0)


def _slope(product: FloatArray, outcome_squares: FloatArray, cause_squares: FloatArray) -> FloatArray:
    """NaN when the cause does not vary; 0 when the outcome does not."""
    only_outcome_is_constant = np.isnan(outcome_squares) & ~np.isnan(cause_squares)
    return np.where(only_outcome_is_constant, 0.0, product / cause_squares)


def _scored_rows(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> tuple[FloatArray, np.ndarray, int]:
    """(rows without a NaN (n, V), their prompt as 0…P−1, rows left out)."""
    table_NV = np.stack([floats(column) for column in columns.values()], axis=1)
    scored_N = ~np.isnan(table_NV).any(axis=1)
    _, prompt_n = np.unique(np.asarray(prompts_N).ravel()[scored_N], return_inverse=True)
    return table_NV[scored_N], prompt_n, int((~scored_N).sum())


def _prompt_count(prompt_N: np.ndarray) -> int:
    return int(prompt_N.max()) + 1 if prompt_N.size else 0


def _sums_by_prompt(table_NV: FloatArray, prompt_N: np.ndarray) -> FloatArray:
    """Σ over each prompt's rows of column · column, (P, V, V)."""
    columns = table_NV.shape[1]
    sums_PVV = np.zeros((_prompt_count(prompt_N), columns, columns))
    np.add.at(sums_PVV, prompt_N, table_NV[:, :, None] * table_NV[:, None, :])
    return sums_PVV
