"""Combination of the scores of ensemble members into one score: pure functions on arrays."""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.types import FloatArray


def combine_members(scores_KN: FloatArray, how: str, *, penalty_weight: float, penalty: str, ddof: int) -> FloatArray:
    """Combine K standardised members conservatively (arXiv:2310.02743, section 3), (N,).

    `mean`; `worst` is the minimum (eq. 4); `uwo` is mean − λ·spread (eq. 5), where the spread is the variance or
    standard deviation over members. `entropic` is −(1/λ)·log mean_k exp(−λ·r_k): the mean for λ = 0, the minimum for
    λ → ∞, and mean − (λ/2)·variance for small λ (arXiv:2606.09073). A response that one member leaves unscored is
    unscored.
    """
    if how == "worst":
        return scores_KN.min(axis=0)
    mean_N = scores_KN.mean(axis=0)
    if how == "mean" or (how == "entropic" and not penalty_weight):
        return mean_N
    if how == "entropic":
        lowest_N = scores_KN.min(axis=0)  # subtracted first, so that no exponential overflows
        return lowest_N - np.log(np.exp(-penalty_weight * (scores_KN - lowest_N)).mean(axis=0)) / penalty_weight
    return mean_N - penalty_weight * spread(scores_KN, penalty, ddof)


def spread(scores_KN: FloatArray, penalty: str, ddof: int) -> FloatArray:
    """Return the variance (`var`) or standard deviation (`sd`) over members, (N,); 0 for a single member."""
    if len(scores_KN) == 1:  # with ddof = 1 it would be 0/0
        return np.zeros_like(scores_KN[0])
    return scores_KN.var(axis=0, ddof=ddof) if penalty == "var" else scores_KN.std(axis=0, ddof=ddof)
