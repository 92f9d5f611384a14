"""Linear probes: how well numbers can be read from a hidden state (arXiv:1610.01644).

The predictions are those of ridge regressions that were fitted on other clusters, for example other prompts.
"""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.types import FloatArray

PENALTIES = 10.0 ** np.arange(-4, 5)
"""Ridge penalties per row, in units of standardised features."""


def cross_fitted(features_NH: FloatArray, target_NA: FloatArray, clusters_N: np.ndarray, folds: int) -> FloatArray:
    """Return predictions of targets from features, (N, A), by fits on the other folds.

    The rows of a cluster are in one fold. In each fit, every target has the penalty with the smallest error of
    generalised cross-validation.

    Args:
        folds: number of folds; at most one per cluster.
    """
    _, cluster_N = np.unique(clusters_N, return_inverse=True)
    # A fixed permutation, because clusters that follow one another may be alike.
    order = np.random.default_rng(0).permutation(cluster_N.max() + 1)
    fold_N = order[cluster_N] % folds
    predicted_NA = np.zeros_like(target_NA)
    for fold in range(folds):
        out = fold_N == fold
        if out.any():
            predicted_NA[out] = _ridge(features_NH[~out], target_NA[~out], features_NH[out])
    return predicted_NA


def _ridge(features_NH: FloatArray, target_NA: FloatArray, new_MH: FloatArray) -> FloatArray:
    mean_H, mean_A = features_NH.mean(axis=0), target_NA.mean(axis=0)
    sd_H = features_NH.std(axis=0)
    sd_H[sd_H == 0] = 1.0  # a constant feature is 0 after centring
    rows = len(features_NH)
    left_NR, singular_R, right_RH = np.linalg.svd((features_NH - mean_H) / sd_H, full_matrices=False)
    projected_RA = left_NR.T @ (target_NA - mean_A)
    total_A = ((target_NA - mean_A) ** 2).sum(axis=0)
    # Fraction of each direction that a penalty keeps, s²/(s² + λN), (penalties, R).
    kept_PR = singular_R**2 / (singular_R**2 + PENALTIES[:, None] * rows)
    # The residual sum of squares is ‖y‖² − Σ (2k − k²)·(uᵀy)² for the kept fractions k.
    residual_PA = total_A - (2 * kept_PR - kept_PR**2) @ projected_RA**2
    # Generalised cross-validation: RSS/(1 − df/N)². One degree of freedom belongs to the mean.
    freedom_P1 = (1 - (kept_PR.sum(axis=1, keepdims=True) + 1) / rows).clip(1e-3)
    best_A = (residual_PA / freedom_P1**2).argmin(axis=0)
    scale_RA = (kept_PR[best_A] / np.where(singular_R > 0, singular_R, np.inf)).T
    weight_HA = right_RH.T @ (scale_RA * projected_RA)
    return mean_A + (new_MH - mean_H) / sd_H @ weight_HA
