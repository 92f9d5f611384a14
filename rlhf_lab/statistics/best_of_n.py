"""Best-of-n sampling: what choosing the best of n samples by a proxy is worth, and how far it goes from the policy."""

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
    """Expected value of the sample that `proxy` likes best among n, without bias, for each n of `sizes`.

    The mean over all C(N, n) subsets of the N independent samples of one prompt: the sample of rank k by proxy (1 is
    the worst) is the best of C(k−1, n−1) subsets, so it weighs C(k−1, n−1) / C(N, n) (the estimator of
    arXiv:2112.09332, appendix I). Samples that tie in proxy share their mean value, which is what breaking ties at
    random gives on average.

    Args:
        proxy_N: (N,) scores that choose; NaN = unscored, cannot be chosen and does not count as drawn.
        values_N: (N,) what the chosen sample is worth: gold, length, anything.
        sizes: values of n, at least 1.

    Returns:
        (len(sizes),); NaN where n exceeds the scored samples.
    """
    proxy_N, values_N = floats(proxy_N), floats(values_N)
    if proxy_N.shape != values_N.shape:
        raise NumericError(f"best of n needs a value for each score, not {values_N.size} for {proxy_N.size}")
    scored_N = ~np.isnan(proxy_N)
    scored = int(scored_N.sum())
    _, level_n, count_K = np.unique(proxy_N[scored_N], return_inverse=True, return_counts=True)
    mean_K = np.bincount(level_n, weights=values_N[scored_N]) / count_K if count_K.size else np.zeros(0)
    values_by_rank = np.repeat(mean_K, count_K)  # worst first; ties have the mean of their values
    expected_S = best_of_n_weights(scored, tuple(sizes)) @ values_by_rank
    return np.where(np.array(sizes) <= scored, expected_S, np.nan)


@cache
def best_of_n_weights(samples: int, sizes: tuple[int, ...]) -> FloatArray:
    """Weight of each rank in the best of n, (len(sizes), samples), worst first; zeros where n > samples."""
    if min(sizes, default=1) < 1:
        raise NumericError(f"best of {min(sizes)} is nothing; n starts at 1")
    rank_N = np.arange(1, samples + 1)
    n_S1 = np.array(sizes, dtype=int)[:, None]
    can_be_best_SN = rank_N >= n_S1
    left_out_below = np.where(can_be_best_SN, rank_N - n_S1, 0)  # samples of lower rank that the subset leaves out
    # Logarithms of C(k−1, n−1) and C(N, n): the numbers themselves overflow.
    log_subsets = gammaln(rank_N) - gammaln(n_S1) - gammaln(left_out_below + 1.0)
    log_all = gammaln(samples + 1.0) - gammaln(n_S1 + 1.0) - gammaln(np.maximum(samples - n_S1, 0) + 1.0)
    return np.exp(np.where(can_be_best_SN, log_subsets - log_all, -np.inf))


def best_of_n_kl(n: int) -> float:
    """ln n − (n−1)/n, nats: KL(best of n ‖ the policy sampled from).

    Exact when no two replies tie in proxy or repeat; an upper bound otherwise (arXiv:2401.01879).
    """
    return math.log(n) - (n - 1) / n
