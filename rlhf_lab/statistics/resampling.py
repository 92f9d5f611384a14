"""Bootstrap over clusters: how often each cluster is drawn, and intervals from the bootstrap draws.

Every statistic that uses this module is a function of sums over rows. A draw of clusters is therefore a vector of
weights, and all draws are computed at once.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate

DRAWS = 1000
"""Number of bootstrap resamples."""
TAIL = (1 - LEVEL) / 2
"""Fraction of the draws on each side of a percentile interval."""


def resample_weights(clusters: int, draws: int = DRAWS, *, seed: int = 0) -> FloatArray:
    """Return how often each of G clusters is drawn when G are drawn with replacement, (D, G); fixed by `seed`."""
    if not clusters:
        return np.zeros((draws, 0))
    rng = np.random.default_rng(seed)
    # Drawing G of G clusters with replacement gives multinomial counts.
    return rng.multinomial(clusters, np.full(clusters, 1 / clusters), draws).astype(np.float64)


def expanded_tail(clusters: int) -> float:
    """Return the fraction of draws to cut off on each side: less than `TAIL` if there are few clusters.

    The standard deviation of bootstrap means is too small by √((G − 1)/G), and the bootstrap uses normal instead of t
    quantiles. The expanded percentile interval (Hesterberg 2015, arXiv:1411.5279, section 4.5) corrects both: it cuts
    off Φ(−√(G/(G − 1))·t_{G−1}), which is 0.0250 for many clusters and 0.0086 for ten.
    """
    critical = float(stats.t.ppf((1 + LEVEL) / 2, clusters - 1))
    return float(stats.norm.cdf(-math.sqrt(clusters / (clusters - 1)) * critical))


def bootstrap_estimate(
    value: float, draws_D: FloatArray, *, n: int, clusters: int, unscored: int = 0, tail: float | None = None
) -> Estimate:
    """Return a value with the percentile interval of its draws, widened if necessary to contain the value.

    Draws that are NaN are left out. The interval is unbounded with fewer than 2 clusters.

    Args:
        tail: fraction of the draws to cut off on each side; None is that of the expanded interval.
    """
    drawn = draws_D[~np.isnan(draws_D)]
    if math.isnan(value) or clusters < 2 or not drawn.size:
        return Estimate(value, -math.inf, math.inf, n, clusters, unscored=unscored)
    cut_off = expanded_tail(clusters) if tail is None else tail
    low, high = (float(bound) for bound in np.quantile(drawn, (cut_off, 1 - cut_off)))
    # `Estimate` requires the mean inside its interval.
    return Estimate(value, min(low, value), max(high, value), n, clusters, unscored=unscored)
