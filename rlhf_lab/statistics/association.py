"""Associations between the scores of responses: over all responses, within prompts, and with a third column controlled.

The association within prompts is the one that matters to a policy. A reward that prefers the responses of one prompt to
those of another prompt gives no training signal. Every statistic here is a function of the sums of products of columns
per prompt, so a bootstrap over prompts only reweights these sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, cluster_labels, floats
from rlhf_lab.statistics.resampling import TAIL, bootstrap_estimate, resample_weights

Statistic = Callable[[FloatArray], FloatArray]
"""Function from sums of products (…, V, V) to a statistic (…,)."""


@dataclass(frozen=True)
class Products:
    """Sums of products of V columns for each of P prompts.

    Attributes:
        sums_PVV: sum of column · column over the responses to each prompt.
        unscored: number of responses left out because one of their columns is NaN.
        free_mean: True if an unnamed last column holds ones. Each bootstrap draw is then centred on its own mean.
    """

    names: tuple[str, ...]
    sums_PVV: FloatArray
    n: int
    unscored: int
    free_mean: bool = False

    def estimate(self, statistic: Statistic) -> Estimate:
        """Return a statistic with the percentile interval of a bootstrap over prompts; NaN if it is not defined."""
        prompts = len(self.sums_PVV)
        total_VV = self.sums_PVV.sum(axis=0)
        value = float(statistic(self._centred(total_VV))) if prompts else math.nan
        draws_D = statistic(self._centred(np.tensordot(resample_weights(prompts), self.sums_PVV, axes=1)))
        return bootstrap_estimate(value, draws_D, n=self.n, clusters=prompts, unscored=self.unscored, tail=TAIL)

    def correlation(self, first: str, second: str, control: str | None = None) -> Estimate:
        """Return the correlation of two columns, or their partial correlation given `control`."""
        return self.estimate(lambda sums: _correlation(*self._products_of(sums, first, second, control)))

    def slope(self, outcome: str, cause: str, control: str | None = None) -> Estimate:
        """Return the least-squares slope: the change of `outcome` per unit of `cause`, with `control` held fixed."""
        return self.estimate(lambda sums: _slope(*self._products_of(sums, outcome, cause, control)))

    def _centred(self, sums_VV: FloatArray) -> FloatArray:
        """Return the sums about the mean of each draw: a regression on the column of ones removes the mean."""
        return without_column(sums_VV, -1) if self.free_mean else sums_VV

    def _products_of(
        self, sums: FloatArray, first: str, second: str, control: str | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (first·second, first·first, second·second) after a regression of both columns on `control`."""
        i, j = self.names.index(first), self.names.index(second)
        residual_sums = sums if control is None else without_column(sums, self.names.index(control))

        def squares(k: int) -> FloatArray:
            """NaN if only rounding error is left, because the control explains the column completely."""
            remaining, original = residual_sums[..., k, k], np.maximum(sums[..., k, k], 0.0)
            return np.where(remaining > 1e-9 * original + 1e-15, remaining, np.nan)

        return residual_sums[..., i, j], squares(i), squares(j)


def within_prompts(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> Products:
    """Return the products of the (N,) columns after subtracting each prompt's mean."""
    table_NV, prompt_N, unscored = _scored_rows(columns, prompts_N)
    means_PV = _sums_by_prompt(table_NV, prompt_N) / np.bincount(prompt_N)[:, None]  # every prompt has a row
    return _products(columns, table_NV - means_PV[prompt_N], prompt_N, unscored)


def pooled_products(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike, *, ranks: bool = False) -> Products:
    """Return the products of the (N,) columns after subtracting the mean over all responses.

    Args:
        ranks: True replaces values by ranks, so that the correlation is Spearman's. The bootstrap does not rerank.
    """
    table_NV, prompt_N, unscored = _scored_rows(columns, prompts_N)
    if len(table_NV):
        # Equal values get their average rank, as in Spearman's correlation.
        table_NV = rankdata(table_NV, axis=0) if ranks else table_NV
        table_NV = table_NV - table_NV.mean(axis=0)
    # The column of ones lets `_centred` recompute the mean in every bootstrap draw.
    table_NV = np.pad(table_NV, ((0, 0), (0, 1)), constant_values=1.0)
    return _products(columns, table_NV, prompt_N, unscored, free_mean=True)


def without_column(sums_VV: FloatArray, column: int) -> FloatArray:
    """Return the products after a regression of every column on one column: S − s·sᵀ/s_kk; unchanged if s_kk is 0."""
    row = sums_VV[..., column, :]
    squares = row[..., column, None, None]
    # np.where evaluates both branches, so the division by 0 warns although its result is not used.
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(squares > 0, row[..., :, None] * row[..., None, :] / squares, 0.0)
    return sums_VV - explained


def _correlation(product: FloatArray, first_squares: FloatArray, second_squares: FloatArray) -> FloatArray:
    # Rounding can put a perfect correlation slightly above 1.
    return np.clip(product / np.sqrt(first_squares * second_squares), -1.0, 1.0)


def _slope(product: FloatArray, outcome_squares: FloatArray, cause_squares: FloatArray) -> FloatArray:
    """Return the slope; NaN if the cause does not vary, 0 if the outcome does not."""
    only_outcome_is_constant = np.isnan(outcome_squares) & ~np.isnan(cause_squares)
    return np.where(only_outcome_is_constant, 0.0, product / cause_squares)


def _scored_rows(columns: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> tuple[FloatArray, np.ndarray, int]:
    """Return (rows without a NaN (n, V), their prompts as 0…P−1 (n,), number of rows left out)."""
    table_NV = np.stack([floats(column) for column in columns.values()], axis=1)
    scored_N = ~np.isnan(table_NV).any(axis=1)
    _, prompt_n = np.unique(cluster_labels(prompts_N)[scored_N], return_inverse=True)
    return table_NV[scored_N], prompt_n, int((~scored_N).sum())


def _products(
    names: Iterable[str], table_NV: FloatArray, prompt_N: np.ndarray, unscored: int, *, free_mean: bool = False
) -> Products:
    sums_PVV = _sums_by_prompt(table_NV[:, :, None] * table_NV[:, None, :], prompt_N)
    return Products(tuple(names), sums_PVV, len(table_NV), unscored, free_mean)


def _sums_by_prompt(rows_N: FloatArray, prompt_N: np.ndarray) -> FloatArray:
    """Return the sums of rows (N, …) over the rows of each prompt, (P, …)."""
    sums_P = np.zeros((int(prompt_N.max(initial=-1)) + 1, *rows_N.shape[1:]))
    np.add.at(sums_P, prompt_N, rows_N)
    return sums_P
