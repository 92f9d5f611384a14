"""Agreement of raters: percent agreement, Cohen's κ, Scott's π, Krippendorff's α.

All but percent agreement are 1 − observed/expected disagreement and functions of sums over items, so a bootstrap over
clusters of items (prompts) gives their intervals. If raters never disagree, the bootstrap has no spread. The lower
bound then assumes the maximum disagreement that Wilson's interval allows for 0 of G clusters. If nearly every label is
the same, a coefficient is undefined in some bootstrap draws, which are left out.

Simulated coverage of two raters with two equally frequent labels is 0.92 or more for 10 to 100 items and for raters who
are right in 80 to 97 % of cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate
from rlhf_lab.statistics.inference import clustered_rate, wilson
from rlhf_lab.statistics.resampling import bootstrap_estimate, resample_weights

Scale = Literal["nominal", "ordinal", "interval"]
Label = Hashable | None
"""A rater's label of an item; None or NaN if there is none."""
Disagreement = tuple[FloatArray, FloatArray]
"""Observed disagreement, and disagreement expected by chance."""


def percent_agreement(
    first_N: Sequence[Label],
    second_N: Sequence[Label],
    clusters_N: ArrayLike,
    *,
    level: float = LEVEL,
) -> Estimate:
    """Return the fraction of items with the same label, among those that both rated; it includes chance agreement."""
    same_N = [
        math.nan if _missing(first) or _missing(second) else float(first == second)
        for first, second in zip(first_N, second_N, strict=True)
    ]
    return clustered_rate(same_N, clusters_N, level=level)


def cohen_kappa(
    first_N: Sequence[Label],
    second_N: Sequence[Label],
    clusters_N: ArrayLike,
    *,
    weights: Literal["linear", "quadratic"] | None = None,
    categories: Sequence[Hashable] | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Return Cohen's κ of two raters (Cohen 1960, weighted: 1968): 1 is agreement, 0 is chance agreement.

        κ = 1 − Σ w_ij p_ij / Σ w_ij p_i· p_·j    w_ij = [i ≠ j], |i − j| or (i − j)²

    Chance agreement follows from each rater's own label frequencies. κ is NaN if both raters use one label only.

    Args:
        first_N, second_N: (N,) labels; None or NaN = not rated. Such items are left out and counted as unscored.
        clusters_N: (N,) cluster of each item, such as its prompt.
        weights: None for labels without an order.
        categories: all labels in the order that the weights use; None is the sorted labels that occur.
    """
    return _of_two(
        _disagreement,
        first_N,
        second_N,
        clusters_N,
        weights,
        categories,
        level,
    )


def scott_pi(
    first_N: Sequence[Label],
    second_N: Sequence[Label],
    clusters_N: ArrayLike,
    *,
    level: float = LEVEL,
) -> Estimate:
    """Return Scott's π of two raters (Scott 1955): κ with chance agreement from the pooled labels of both raters."""

    return _of_two(
        _pooled_disagreement,
        first_N,
        second_N,
        clusters_N,
        None,
        None,
        level,
    )


def _disagreement(confusion: FloatArray, weight_CC: FloatArray) -> Disagreement:
    """Return the observed disagreement and the one expected from each rater's own labels."""
    first = confusion.sum(axis=-1)
    second = confusion.sum(axis=-2)
    # leading axes, such as bootstrap draws, are broadcast
    expected = first[..., :, None] * second[..., None, :]
    return _mean_weight(confusion, weight_CC), _mean_weight(expected, weight_CC)


def _pooled_disagreement(confusion: FloatArray, weight_CC: FloatArray) -> Disagreement:
    """Return the observed disagreement and the one expected from the labels of both raters together."""
    both = confusion.sum(axis=-1) + confusion.sum(axis=-2)
    expected = both[..., :, None] * both[..., None, :]
    return _mean_weight(confusion, weight_CC), _mean_weight(expected, weight_CC)


def _mean_weight(counts: FloatArray, weight_CC: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return (weight_CC * counts).sum(axis=(-2, -1)) / counts.sum(axis=(-2, -1))


def _of_two(
    disagreement: Callable[[FloatArray, FloatArray], Disagreement],
    first_N: Sequence[Label],
    second_N: Sequence[Label],
    clusters_N: ArrayLike,
    weights: Literal["linear", "quadratic"] | None,
    categories: Sequence[Hashable] | None,
    level: float,
) -> Estimate:
    """Return a coefficient of the confusion matrix of the items that both rated."""
    cluster_N = np.asarray(clusters_N).ravel()
    if not len(first_N) == len(second_N) == len(cluster_N):
        raise NumericError(
            f"{len(first_N)} and {len(second_N)} labels with {len(cluster_N)} clusters; pass one of each per item"
        )
    # only items that both rated enter the confusion matrix; the others are counted as unscored
    rated_N = [not (_missing(a) or _missing(b)) for a, b in zip(first_N, second_N, strict=True)]
    first_n = [label for label, rated in zip(first_N, rated_N, strict=True) if rated]
    second_n = [label for label, rated in zip(second_N, rated_N, strict=True) if rated]
    names = _categories([*first_n, *second_n], categories)
    _, cluster_n = np.unique(cluster_N[np.array(rated_N, dtype=bool)], return_inverse=True)
    clusters = int(cluster_n.max()) + 1 if len(cluster_n) else 0
    # one confusion matrix per cluster, so that the bootstrap can weight clusters
    number = {name: index for index, name in enumerate(names)}
    confusion_GCC = np.zeros((clusters, len(names), len(names)))
    for cluster, first, second in zip(cluster_n, first_n, second_n, strict=True):
        confusion_GCC[cluster, number[first], number[second]] += 1
    # disagreement of two labels: 0 or 1, or their distance in the order of the categories
    ranks_C = np.arange(len(names))
    distance_CC = np.abs(np.subtract.outer(ranks_C, ranks_C)).astype(float)
    nominal_CC = (distance_CC > 0).astype(float)
    weight_CC = {None: nominal_CC, "linear": distance_CC, "quadratic": distance_CC**2}[weights]
    return _coefficient(
        confusion_GCC,
        lambda confusion: disagreement(confusion, weight_CC),
        largest=float(weight_CC.max(initial=0.0)),
        n=len(first_n),
        unscored=len(first_N) - len(first_n),
        level=level,
    )


def _coefficient(
    counts_GCC: FloatArray,
    disagreement: Callable[[FloatArray], Disagreement],
    *,
    largest: float,
    n: int,
    unscored: int,
    level: float,
) -> Estimate:
    """Return 1 − observed/expected disagreement with a bootstrap over clusters; NaN if the expected one is 0.

    Args:
        counts_GCC: counts of label pairs in each cluster.
        largest: disagreement of the two most distant labels.
    """
    clusters = len(counts_GCC)

    def coefficient(observed: FloatArray, expected: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(expected > 0, 1 - observed / expected, np.nan)

    if not n:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0, level, unscored)
    observed, expected = disagreement(counts_GCC.sum(axis=0))
    # (D, G) weights times (G, C, C) counts: one resampled confusion matrix per draw
    draws_DCC = np.tensordot(resample_weights(clusters), counts_GCC, axes=1)
    draws_D = coefficient(*disagreement(draws_DCC))
    value = float(coefficient(observed, expected))
    estimate = bootstrap_estimate(
        value,
        draws_D,
        n=n,
        clusters=clusters,
        unscored=unscored,
        level=level,
    )
    # no observed disagreement means no spread over draws, see the module's docstring
    if observed == 0 and estimate.bounded:
        possible = wilson(0, clusters, level=level).high * largest
        return dataclasses.replace(estimate, low=max(-1.0, 1 - possible / float(expected)))
    return estimate


def krippendorff_alpha(
    ratings_RN: Sequence[Sequence[Label]],
    clusters_N: ArrayLike,
    *,
    scale: Scale = "nominal",
    categories: Sequence[Hashable] | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Return Krippendorff's α of any number of raters, each of whom may have rated some items only (Krippendorff 2011).

        α = 1 − (n − 1)·Σ o_ck δ²_ck / Σ n_c n_k δ²_ck

    o are coincidences: an item with m labels adds 1/(m − 1) for every ordered pair of them; n_c are its row sums.
    δ² is [c ≠ k], the square of the number of labels between c and k (ordinal), or (c − k)² (interval). An item with
    fewer than two labels has no pair and is counted as unscored. α is NaN if only one label occurs.

    Args:
        ratings_RN: a row of N labels per rater; None or NaN = not rated.
        clusters_N: (N,) cluster of each item.
        scale: scale of the labels; interval needs numbers.
        categories: all labels in the order that `ordinal` uses; None is the sorted labels that occur.
    """
    cluster_N = np.asarray(clusters_N).ravel()
    if any(len(row) != len(cluster_N) for row in ratings_RN):
        raise NumericError("pass one label per item for every rater (None if not rated) and one cluster per item")
    # from a row per rater to the labels of each item
    items = list(zip(*ratings_RN, strict=True))
    labels_N = [[label for label in item if not _missing(label)] for item in items]
    names = _categories([label for labels in labels_N for label in labels], categories)
    number = {name: index for index, name in enumerate(names)}
    # an item with fewer than two labels has no pair
    paired_N = np.array([len(labels) > 1 for labels in labels_N], dtype=bool)
    kept_clusters, cluster_n = np.unique(cluster_N[paired_N], return_inverse=True)
    coincidence_GCC = np.zeros((len(kept_clusters), len(names), len(names)))
    paired_labels = [labels for labels in labels_N if len(labels) > 1]
    for cluster, labels in zip(cluster_n, paired_labels, strict=True):
        label_indices = [number[label] for label in labels]
        counts_C = np.bincount(label_indices, minlength=len(names)).astype(float)
        # ordered pairs of different raters: the diagonal loses the pairs of a label with itself
        pairs_CC = np.outer(counts_C, counts_C) - np.diag(counts_C)
        coincidence_GCC[cluster] += pairs_CC / (len(labels) - 1)
    values_C = np.arange(len(names), dtype=float)
    if scale == "interval" and names:
        values_C = np.array(names, dtype=float)

    totals_CC = coincidence_GCC.sum(axis=0)
    return _coefficient(
        coincidence_GCC,
        lambda coincidence: _pair_disagreement(coincidence, _distances(coincidence, values_C, scale)),
        largest=float(_distances(totals_CC, values_C, scale).max(initial=0.0)),
        n=int(paired_N.sum()),
        unscored=len(items) - int(paired_N.sum()),
        level=level,
    )


def _distances(coincidence: FloatArray, values_C: FloatArray, scale: Scale) -> FloatArray:
    """Return δ² between labels: (C, C), for the ordinal scale (…, C, C)."""
    if scale == "ordinal":
        # position of c: the labels before c plus half of c's own, so a distance is the number of labels between
        count_C = coincidence.sum(axis=-1)
        position_C = np.cumsum(count_C, axis=-1) - count_C / 2
        return np.square(position_C[..., :, None] - position_C[..., None, :])
    if scale == "interval":
        return np.square(values_C[:, None] - values_C)
    return 1.0 - np.eye(len(values_C))


def _pair_disagreement(coincidence: FloatArray, distance_CC: FloatArray) -> Disagreement:
    """Return the mean δ² of pairs within items, and of pairs of any two of the n labels."""
    count_C = coincidence.sum(axis=-1)
    n = count_C.sum(axis=-1)
    # pairs of any two labels, which is the agreement expected by chance
    pairs = (count_C[..., :, None] * count_C[..., None, :] * distance_CC).sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (coincidence * distance_CC).sum(axis=(-2, -1)) / n, pairs / (n * (n - 1))


def _missing(label: Label) -> bool:
    return label is None or (isinstance(label, float) and math.isnan(label))


def _categories(labels: Sequence[Hashable], provided: Sequence[Hashable] | None) -> list[Hashable]:
    if provided is None:
        return sorted(set(labels))  # type: ignore[type-var]
    unknown = sorted({str(label) for label in labels} - {str(label) for label in provided})
    if unknown:
        listed = ", ".join(map(str, provided))
        raise NumericError(f"labels {', '.join(unknown)} are not among the categories {listed}")
    return list(provided)
