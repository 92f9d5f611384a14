"""Agreement of two raters on labels without an order: percent agreement and Cohen's κ.

κ is 1 − observed/expected disagreement and a function of sums over items, so a bootstrap over clusters of items
(prompts) gives its interval. If raters never disagree, the bootstrap has no spread. The lower bound then assumes the
maximum disagreement that Wilson's interval allows for 0 of G clusters. If nearly every label is the same, κ is
undefined in some bootstrap draws, which are left out.

Simulated coverage of two raters with two equally frequent labels is 0.92 or more for 10 to 100 items and for raters who
are right in 80 to 97 % of cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, cluster_labels
from rlhf_lab.statistics.inference import clustered_rate, wilson
from rlhf_lab.statistics.resampling import bootstrap_estimate, resample_weights

Label = Hashable | None
"""A rater's label of an item; None or NaN if there is none."""


def percent_agreement(first_N: Sequence[Label], second_N: Sequence[Label], clusters_N: ArrayLike) -> Estimate:
    """Return the fraction of items with the same label, among those that both rated; it includes chance agreement."""
    pairs_N = list(zip(first_N, second_N, strict=True))
    same_N = [math.nan if any(map(_missing, pair)) else float(pair[0] == pair[1]) for pair in pairs_N]
    return clustered_rate(same_N, clusters_N)


def cohen_kappa(first_N: Sequence[Label], second_N: Sequence[Label], clusters_N: ArrayLike) -> Estimate:
    """Return Cohen's κ of two raters (Cohen 1960): 1 is agreement, 0 is chance agreement.

        κ = 1 − Σ_{i≠j} p_ij / Σ_{i≠j} p_i· p_·j

    Chance agreement follows from each rater's own label frequencies. κ is NaN if both raters use one label only.

    Args:
        first_N, second_N: (N,) labels; None or NaN = not rated. Such items are left out and counted as unscored.
        clusters_N: (N,) cluster of each item, such as its prompt.
    """
    cluster_N = cluster_labels(clusters_N)
    if not len(first_N) == len(second_N) == len(cluster_N):
        raise NumericError(
            f"{len(first_N)} and {len(second_N)} labels with {len(cluster_N)} clusters; pass one of each per item"
        )
    pairs_N = list(zip(first_N, second_N, strict=True))
    rated_N = np.array([not any(map(_missing, pair)) for pair in pairs_N], dtype=bool)
    pairs_n = [pair for pair, rated in zip(pairs_N, rated_N, strict=True) if rated]
    index = _label_indices(pairs_n)
    kept_clusters, cluster_n = np.unique(cluster_N[rated_N], return_inverse=True)
    # one confusion matrix per cluster, so that the bootstrap can weight clusters
    confusion_GCC = np.zeros((len(kept_clusters), len(index), len(index)))
    for cluster, (first, second) in zip(cluster_n, pairs_n, strict=True):
        confusion_GCC[cluster, index[first], index[second]] += 1
    return _coefficient(confusion_GCC, n=len(pairs_n), unscored=len(pairs_N) - len(pairs_n))


def _disagreement(confusion: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the observed disagreement and the one expected from each rater's own labels."""
    first = confusion.sum(axis=-1)
    second = confusion.sum(axis=-2)
    # leading axes, such as bootstrap draws, are broadcast
    expected = first[..., :, None] * second[..., None, :]
    return _off_diagonal(confusion), _off_diagonal(expected)


def _off_diagonal(counts: FloatArray) -> FloatArray:
    differ_CC = 1.0 - np.eye(counts.shape[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return (differ_CC * counts).sum(axis=(-2, -1)) / counts.sum(axis=(-2, -1))


def _coefficient(confusion_GCC: FloatArray, *, n: int, unscored: int) -> Estimate:
    """Return 1 − observed/expected disagreement with a bootstrap over clusters; NaN if the expected one is 0.

    Args:
        confusion_GCC: confusion matrix of each cluster.
    """
    clusters = len(confusion_GCC)

    def coefficient(observed: FloatArray, expected: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(expected > 0, 1 - observed / expected, np.nan)

    if not n:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0, unscored=unscored)
    observed, expected = _disagreement(confusion_GCC.sum(axis=0))
    # (D, G) weights times (G, C, C) counts: one resampled confusion matrix per draw
    draws_DCC = np.tensordot(resample_weights(clusters), confusion_GCC, axes=1)
    draws_D = coefficient(*_disagreement(draws_DCC))
    value = float(coefficient(observed, expected))
    estimate = bootstrap_estimate(value, draws_D, n=n, clusters=clusters, unscored=unscored)
    # no observed disagreement means no spread over draws, see the module's docstring
    if observed == 0 and estimate.bounded:
        possible = wilson(0, clusters).high
        return dataclasses.replace(estimate, low=max(-1.0, 1 - possible / float(expected)))
    return estimate


def _missing(label: Label) -> bool:
    return label is None or (isinstance(label, float) and math.isnan(label))


def _label_indices(labels_N: Sequence[Sequence[Label]]) -> dict[Label, int]:
    distinct = {label for labels in labels_N for label in labels}
    return {label: index for index, label in enumerate(sorted(distinct))}  # type: ignore[type-var]
