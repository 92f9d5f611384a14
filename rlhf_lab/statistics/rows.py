"""From rows to estimates: the column of a metric, the rows of each group, and a rate or a mean with its interval.

A row is a mapping, such as a line of evaluation.jsonl, with None for an unscored value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_fraction, clustered_mean, clustered_rate
from rlhf_lab.statistics.paired_rates import rule_of_three

Row = TypeVar("Row", bound=Mapping[str, Any])


def column(rows: Sequence[Mapping[str, Any]], name: str) -> FloatArray:
    """Return one column, (N,); a missing value and None are NaN."""
    values: list[Any] = [row.get(name) for row in rows]
    return floats(values)


def grouped(rows: Sequence[Row], key: str) -> dict[Any, list[Row]]:
    """Return value of the key → its rows, in the order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def outcomes_by(rows: Sequence[Mapping[str, Any]], key: str, name: str) -> dict[Any, list[float]]:
    """Return value of the key → the scored values of one column, as paired comparisons read them."""
    scored = [row for row in rows if row.get(name) is not None]
    return {value: column(members, name).tolist() for value, members in grouped(scored, key).items()}


def rate_or_mean(values_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return a rate with its Wilson interval if all scored values are 0 or 1, else a mean."""
    values_N = floats(values_N)
    is_rate = bool(np.isin(values_N[~np.isnan(values_N)], (0.0, 1.0)).all())
    return clustered_rate(values_N, clusters_N) if is_rate else clustered_mean(values_N, clusters_N)


def fractions_at(
    name: str, sizes: Sequence[int], values: Sequence[FloatArray], clusters: ArrayLike, trials: int
) -> dict[str, Estimate]:
    """Return `name@k` for each k in `sizes`.

    Each task has an array (len(sizes),) in `values`; `trials` is the total number of samples.
    """
    values_PK = np.stack(values)
    return {f"{name}@{k}": clustered_fraction(values_PK[:, i], clusters, trials=trials) for i, k in enumerate(sizes)}


def upper_bound(rate: Estimate) -> Estimate:
    """Return the upper bound of a rate of 0. Rows of one cluster count as one trial."""
    bound = rule_of_three(rate.clusters)
    return Estimate(bound, bound, bound, rate.n, rate.clusters)
