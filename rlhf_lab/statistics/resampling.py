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


def resample_weights(clusters: int, draws: int = DRAWS, *, seed: int = 0) -> FloatArray:
    """Return how often each of G clusters is drawn when G are drawn with replacement, (D, G); fixed by `seed`."""
    if not clusters:
        return np.zeros((draws, 0))
    rng = np.random.default_rng(seed)
    # Drawing G of G clusters with replacement gives multinomial counts.
    return rng.multinomial(clusters, np.full(clusters, 1 / clusters), draws).astype(np.float64)


def expanded_tail(clusters: int, level: float = LEVEL) -> float:
    """Return the fraction of draws to cut off on each side: less than (1 − level)/2 if there are few clusters.

    The standard deviation of bootstrap means is too small by √((G − 1)/G), and the bootstrap uses normal instead of t
    quantiles. The expanded percentile interval (Hesterberg 2015, arXiv:1411.5279, section 4.5) corrects both: it cuts
    off Φ(−√(G/(G − 1))·t_{G−1}), which is 0.0250 for many clusters and 0.0086 for ten.
    """
    critical = float(stats.t.ppf((1 + level) / 2, clusters - 1))
    return float(stats.norm.cdf(-math.sqrt(clusters / (clusters - 1)) * critical))


def percentile_bounds(draws_D: FloatArray, clusters: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the expanded percentile interval of (D,) draws without NaN; unbounded with fewer than 2 clusters."""
    selected = draws_D[~np.isnan(draws_D)]
    if clusters < 2 or not selected.size:
        return -math.inf, math.inf
    tail = expanded_tail(clusters, level)
    low, high = np.quantile(selected, (tail, 1 - tail))
    return float(low), float(high)


def bootstrap_estimate(
    value: float, draws_D: FloatArray, *, n: int, clusters: int, unscored: int = 0, level: float = LEVEL
) -> Estimate:
    """Return a value with the percentile interval of its draws, widened if necessary to contain the value."""
    if math.isnan(value):
        return Estimate(value, -math.inf, math.inf, n, clusters, level, unscored)
    low, high = percentile_bounds(draws_D, clusters, level)
    return Estimate(value, min(low, value), max(high, value), n, clusters, level, unscored)
