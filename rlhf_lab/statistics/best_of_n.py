"""Best-of-n sampling: expected value of the response that a proxy selects, and its KL distance from the policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import floats


def best_of_n(proxy_N: ArrayLike, values_N: ArrayLike, sizes: Sequence[int]) -> FloatArray:
    """Return an unbiased estimate of the value of the best of n samples by `proxy`, for each n of `sizes`.

    It is the mean over all C(N, n) subsets of the N independent samples of one prompt. The sample of rank k by proxy
    (1 is the worst) is the best of C(k−1, n−1) subsets, so its weight is C(k−1, n−1) / C(N, n) (the estimator of
    arXiv:2112.09332, appendix I). Samples that tie in proxy get their mean value, which is the average result of
    breaking ties at random.

    Args:
        proxy_N: (N,) scores used for the selection. NaN = unscored: such a sample is left out.
        values_N: (N,) value of each sample, such as its gold reward or length.
        sizes: values of n ≥ 1.

    Returns:
        (len(sizes),) expected values; NaN if n exceeds the number of scored samples.
    Raises:
        NumericError: the two arrays have different lengths, or a size is below 1.
    """
    proxy_N, values_N = floats(proxy_N), floats(values_N)
    if proxy_N.shape != values_N.shape:
        raise NumericError(
            f"best-of-n needs one value per score, but got {values_N.size} values for {proxy_N.size} scores; "
            "give arrays of equal length"
        )
    scored_N = ~np.isnan(proxy_N)
    scored = int(scored_N.sum())
    # Group ties: all samples with the same proxy score get the mean of their values.
    _, level_n, count_K = np.unique(
        proxy_N[scored_N],
        return_inverse=True,
        return_counts=True,
    )
    mean_K = np.zeros(0)
    if count_K.size:
        mean_K = np.bincount(level_n, weights=values_N[scored_N]) / count_K
    values_by_rank = np.repeat(mean_K, count_K)  # worst first; tied samples all get the mean of their values
    expected_S = best_of_n_weights(scored, tuple(sizes)) @ values_by_rank
    return np.where(np.array(sizes) <= scored, expected_S, np.nan)


@cache
def best_of_n_weights(samples: int, sizes: tuple[int, ...]) -> FloatArray:
    """Return the weight of each rank in the best of n, (len(sizes), samples), worst first; zeros if n > samples."""
    if min(sizes, default=1) < 1:
        raise NumericError(f"best of {min(sizes)} is not defined; n must be at least 1")
    rank_N = np.arange(1, samples + 1)
    n_S1 = np.array(sizes, dtype=int)[:, None]
    # The sample of rank k can only be the best of n if n − 1 or more samples are below it.
    can_be_best_SN = rank_N >= n_S1
    left_out_below = np.where(can_be_best_SN, rank_N - n_S1, 0)  # samples of lower rank that are not in the subset
    # Logarithms of C(k−1, n−1) and C(N, n), because the binomial coefficients themselves overflow.
    log_subsets = gammaln(rank_N) - gammaln(n_S1) - gammaln(left_out_below + 1.0)
    log_all = gammaln(samples + 1.0) - gammaln(n_S1 + 1.0) - gammaln(np.maximum(samples - n_S1, 0) + 1.0)
    # −inf becomes a weight of exactly 0.
    return np.exp(np.where(can_be_best_SN, log_subsets - log_all, -np.inf))


def best_of_n_kl(n: int) -> float:
    """Return KL(best of n ‖ sampling policy) in nats: ln n − (n−1)/n.

    It is exact if no two responses tie in proxy or repeat, and an upper bound otherwise (arXiv:2401.01879).
    """
    return math.log(n) - (n - 1) / n
