"""Numbers with their uncertainty: means, differences, ratios and rates, clustered by prompt, task or seed.

Rows that share a prompt are not independent, so every interval here counts clusters, not rows. NaN means "unscored":
such rows are left out and counted in `Estimate.unscored`, never treated as 0.

Left out: small-sample corrections beyond CR1 (CR2, wild bootstrap), two-way clustering, multiple imputation. The
intervals are t intervals; with fewer than about 10 strongly unequal clusters they are somewhat too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import brentq

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import (
    LEVEL,
    POWER,
    Comparison,
    Estimate,
    check_mean,
    check_rate,
    floats,
    format_estimate,
)

__all__ = [
    "Comparison",
    "Estimate",
    "check_mean",
    "check_rate",
    "clustered_fraction",
    "clustered_mean",
    "clustered_rate",
    "equivalence",
    "format_estimate",
    "holm",
    "least_sd",
    "least_sd_of_outcomes",
    "mcnemar_exact",
    "minimum_detectable_effect",
    "paired_difference",
    "paired_over_seeds",
    "ratio_of_means",
    "repetitions_to_decide",
    "seed_mean",
    "t_comparison",
    "unpaired_difference",
    "unpaired_from_intervals",
    "wilson",
]


def clustered_mean(
    values_N: ArrayLike, clusters_N: ArrayLike, *, least_sd_N: ArrayLike | None = None, level: float = LEVEL
) -> Estimate:
    """Mean with a cluster-robust t interval.

    CR1 (Cameron & Miller 2015, eq. 11-12) for a model with only an intercept, over G clusters of n rows in all:
        S_g = Σ_{i in g} (y_i − ȳ)      V = G/(G−1) · Σ_g S_g² / n²      ȳ ± t_{G−1} · √V
    With one row per cluster this is the ordinary t interval. One cluster gives an infinite interval.

    Args:
        values_N: (N,) scores; NaN = unscored.
        clusters_N: (N,) cluster of each row: prompt, task or seed, any hashable kind.
        least_sd_N: (N,) the least standard deviation that each value is taken to have; see `paired_difference`.
    """
    scored_N = ~np.isnan(floats(values_N))
    values_N, cluster_N, unscored = _scored(clusters_N, values_N)
    mean = float(values_N.mean()) if values_N.size else math.nan
    error = _standard_error(values_N - mean, cluster_N)
    if least_sd_N is not None:
        error = max(error, least_error(floats(least_sd_N)[scored_N], cluster_N))
    return _interval(mean, error, cluster_N, level, unscored)


def seed_mean(values_S: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Mean over seeds with a t interval: every one of the (S,) values is a run of its own."""
    values_S = floats(values_S)
    return clustered_mean(values_S, np.arange(values_S.size), level=level)


def paired_difference(
    a_N: ArrayLike,
    b_N: ArrayLike,
    clusters_N: ArrayLike,
    *,
    least_sd_N: ArrayLike | None = None,
    level: float = LEVEL,
) -> Comparison:
    """Compare a with b on the same rows: mean of a − b, clustered, with a t test on G−1 degrees of freedom.

    A pair counts only when both sides are scored. The minimum detectable effect takes the cluster-robust standard
    error as that of G independent differences.

    A handful of clusters can move by almost the same amount, which says little about how much the next one would. The
    standard error is therefore not taken below that of differences with the standard deviations `least_sd_N`:
        max(SE, √(Σ_g (Σ_{i in g} least_sd_i)²)/N)
    This is continuous in the data: equal differences are judged like nearly equal ones.

    Args:
        a_N, b_N: (N,) scores of the two sides, row by row.
        clusters_N: (N,) cluster of each pair.
        least_sd_N: (N,) the least standard deviation that each difference is taken to have; None takes that of values
            which state no errors (`least_sd`).
    """
    a_N, b_N = floats(a_N), floats(b_N)
    if a_N.shape != b_N.shape:
        raise NumericError(f"paired comparison needs equally many values on both sides, not {a_N.size} and {b_N.size}")
    scored_N = ~np.isnan(a_N - b_N)
    difference_N, cluster_N, unscored = _scored(clusters_N, a_N - b_N)
    if least_sd_N is not None:
        least_N = floats(least_sd_N)[scored_N]
    elif difference_N.any():
        least_N = np.hypot(least_sd(a_N), least_sd(b_N))[scored_N]
    else:
        # Sides that are equal on every row to the last digit are the same, and nothing is uncertain about that.
        least_N = np.zeros_like(difference_N)
    mean = float(difference_N.mean()) if difference_N.size else math.nan
    observed_error = _standard_error(difference_N - mean, cluster_N)
    error = max(observed_error, least_error(least_N, cluster_N))
    clusters = _count_distinct(cluster_N)
    test = "paired t test, cluster-robust (CR1)"
    if error > observed_error:
        test += ", with the least standard deviation that the measurement allows"
    return t_comparison(
        mean, error, clusters - 1, test, n=cluster_N.size, clusters=clusters, unscored=unscored, level=level
    )


def t_comparison(
    gap: float,
    error: float,
    freedom: float,
    test: str,
    *,
    n: int,
    clusters: int,
    unscored: int = 0,
    fixed_error: float = 0.0,
    level: float = LEVEL,
) -> Comparison:
    """A difference with its t interval, p-value and detectable size, from a standard error and its degrees of freedom.

    Without a finite error or any degree of freedom there is no test. With an error of 0 the difference is exact.
    """
    if not (freedom > 0 and math.isfinite(error)):
        unbounded = Estimate(gap, -math.inf, math.inf, n, clusters, level, unscored)
        return Comparison(unbounded, math.nan, math.inf, "none: fewer than 2 clusters")
    half_width = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    estimate = Estimate(gap, gap - half_width, gap + half_width, n, clusters, level, unscored)
    p_value = float(2 * stats.t.sf(abs(gap) / error, freedom)) if error else float(gap == 0)
    # A t test on ν + 1 differences with the standard deviation error·√(ν + 1) has this error and these degrees.
    effect = minimum_detectable_effect(error * math.sqrt(freedom + 1), freedom + 1, alpha=1 - level)
    return Comparison(estimate, p_value, effect, test, standard_error=error, freedom=freedom, fixed_error=fixed_error)


MEASURED_SHARE = 0.1
"""Least standard deviation of a measured value, in standard errors of its measurement. If nothing but the measurement
varied, three values would lie closer together once in a hundred times (√(χ²_{2, .01}/2) = .1)."""

RESOLUTION = 0.001
"""Least standard deviation, as a share of its size, of a value that states no error."""


def least_sd(values_N: ArrayLike, errors_N: ArrayLike | None = None) -> FloatArray:
    """The least standard deviation, (N,), that each of N repeated measurements is taken to have.

    A tenth of its standard error where one is stated, a thousandth of its size elsewhere.

    Args:
        errors_N: (N,) standard error of each value; NaN or None where it states none.
    """
    values_N = floats(values_N)
    errors_N = np.full(values_N.shape, np.nan) if errors_N is None else floats(errors_N)
    states_no_error_N = np.isnan(errors_N)
    return np.where(states_no_error_N, RESOLUTION * np.abs(values_N), MEASURED_SHARE * errors_N)


def least_sd_of_outcomes(a_N: ArrayLike, b_N: ArrayLike) -> FloatArray:
    """`least_sd`, (N,), of differences of outcomes that are 0 or 1: a few equal ones say little about the next one.

    With n₊ pairs in which only a is 1 and n₋ in which only b is, half a pair is added to each count:
        q = (n₊ + n₋ + 1)/(N + 1),   d = (n₊ − n₋)/(N + 1),   sd = √(q − d²)
    """
    a_N, b_N = floats(a_N), floats(b_N)
    difference_N = (a_N - b_N)[~np.isnan(a_N - b_N)]
    pairs = difference_N.size + 1
    discordant = (np.abs(difference_N).sum() + 1) / pairs
    mean = difference_N.sum() / pairs
    return np.full(a_N.shape, math.sqrt(discordant - mean**2))


def least_error(least_sd_N: FloatArray, cluster_N: np.ndarray) -> float:
    """The least standard error of a mean of values with these least standard deviations, alike within a cluster."""
    if not least_sd_N.size:
        return 0.0
    _, index_N = np.unique(cluster_N, return_inverse=True)
    sums_G = np.bincount(index_N, weights=least_sd_N)  # alike within a cluster: there they add up, not their squares
    return float(math.sqrt(np.square(sums_G).sum()) / least_sd_N.size)


def unpaired_difference(
    a_N: ArrayLike, a_clusters_N: ArrayLike, b_M: ArrayLike, b_clusters_M: ArrayLike, *, level: float = LEVEL
) -> Comparison:
    """Compare a with b on rows that share nothing, such as replies to different prompts: mean of a − mean of b.

    Welch's t test (Welch 1947) with the CR1 standard errors of the two sides, s_a and s_b, on G_a and G_b clusters:
        (ā − b̄) / √(s_a² + s_b²),   ν = (s_a² + s_b²)² / (s_a⁴/(G_a − 1) + s_b⁴/(G_b − 1))
    With one row per cluster this is the ordinary Welch test. Paired rows deserve `paired_difference`, which is sharper.

    Args:
        a_N, b_M: (N,) and (M,) scores of the two sides; NaN = unscored.
        a_clusters_N, b_clusters_M: cluster of each row.
    """
    a_values, a_cluster, a_unscored = _scored(a_clusters_N, a_N)
    b_values, b_cluster, b_unscored = _scored(b_clusters_M, b_M)
    a_mean = float(a_values.mean()) if a_values.size else math.nan
    b_mean = float(b_values.mean()) if b_values.size else math.nan
    gap = a_mean - b_mean
    a_groups, b_groups = _count_distinct(a_cluster), _count_distinct(b_cluster)
    rows = a_values.size + b_values.size
    groups = a_groups + b_groups
    unscored = a_unscored + b_unscored
    if min(a_groups, b_groups) < 2:
        unbounded = Estimate(gap, -math.inf, math.inf, rows, groups, level, unscored)
        return Comparison(unbounded, math.nan, math.inf, "none: fewer than 2 clusters on a side")
    a_error = max(_standard_error(a_values - a_mean, a_cluster), least_error(least_sd(a_values), a_cluster))
    b_error = max(_standard_error(b_values - b_mean, b_cluster), least_error(least_sd(b_values), b_cluster))
    error = math.hypot(a_error, b_error)
    denominator = a_error**4 / (a_groups - 1) + b_error**4 / (b_groups - 1)
    # Without any error all values of both sides are 0, and the degrees of freedom do not matter.
    freedom = error**4 / denominator if denominator else float(groups - 2)
    test = "unpaired t test, cluster-robust (Welch, CR1)"
    return t_comparison(gap, error, freedom, test, n=rows, clusters=groups, unscored=unscored, level=level)


def error_of_interval(estimate: Estimate) -> float:
    """The standard error that an interval stands for, as if it were normal: half-width / z_level; inf if unbounded."""
    half_width = (estimate.high - estimate.low) / 2
    return half_width / float(stats.norm.ppf((1 + estimate.level) / 2))


def unpaired_from_intervals(a: Estimate, b: Estimate) -> tuple[float, float]:
    """(z, two-sided p) of b − a from two intervals alone, as if nothing were shared: each half-width is z_level · s.

        z = (b̄ − ā) / √(s_a² + s_b²)

    NaN when a side has no interval. Intervals that overlap may well differ by this test.
    """
    if not (a.bounded and b.bounded and a.n and b.n):
        return math.nan, math.nan
    error = math.hypot(error_of_interval(a), error_of_interval(b))
    z = (b.mean - a.mean) / error if error else math.nan
    return z, float(2 * stats.norm.sf(abs(z)))


def paired_over_seeds(a_S: ArrayLike, b_S: ArrayLike, *, level: float = LEVEL) -> Comparison:
    """Compare two settings run with the same (S,) seeds."""
    a_S = floats(a_S)
    return paired_difference(a_S, b_S, np.arange(a_S.size), level=level)


def ratio_of_means(
    numerator_N: ArrayLike, denominator_N: ArrayLike, clusters_N: ArrayLike, *, level: float = LEVEL
) -> Estimate:
    """Σ numerator / Σ denominator with a clustered delta-method interval, e.g. reward gained per nat of KL.

    Linearised residual (Cochran 1977, §2.11): e_i = (x_i − R·d_i) / d̄; V is that of a clustered mean of e. The
    delta method fails when the denominator is not clearly away from zero; if its own interval holds 0 the ratio's is
    infinite (as Fieller's would be).

    Args:
        numerator_N, denominator_N: (N,) values per row; a row counts when both are scored.
    """
    numerator_N, denominator_N = floats(numerator_N), floats(denominator_N)
    missing_N = np.isnan(numerator_N) | np.isnan(denominator_N)
    numerator_n, cluster_n, unscored = _scored(clusters_N, np.where(missing_N, np.nan, numerator_N))
    denominator_n = denominator_N[~missing_N]
    denominator = clustered_mean(denominator_n, cluster_n, level=level)
    if not denominator.mean:
        return Estimate(math.nan, -math.inf, math.inf, numerator_n.size, denominator.clusters, level, unscored)
    ratio = float(numerator_n.mean() / denominator.mean) if numerator_n.size else math.nan
    if denominator.bounded and denominator.excludes_zero:
        residual_n = (numerator_n - ratio * denominator_n) / denominator.mean
        error = _standard_error(residual_n, cluster_n)
    else:
        error = math.inf
    return _interval(ratio, error, cluster_n, level, unscored)


def clustered_rate(outcomes_N: ArrayLike, clusters_N: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Rate of 0/1 outcomes with a Wilson interval that stays inside [0, 1], clustered.

    Wilson with the effective sample size of Korn & Graubard (1998), which accounts for a variance that G clusters of n
    rows in all know on G−1 degrees of freedom only (compared by Dean & Pagano 2015), V as in `clustered_mean`:
        n* = p(1−p)/V · (t_{n−1}/t_{G−1})², at most n
    At n* = n, clusters that agree by chance do not make the interval narrower than that of independent rows. When all
    outcomes are equal V says nothing and n* is G, so 8 of 8 is not reported as exactly 1.

    Simulated coverage at 3 to 40 clusters of 20 rows is .94–.99. It falls to .87–.90 where a few clusters hold all
    successes (rate .05 with a correlation of .2 or more within clusters): V is then underestimated with the rate.
    """
    outcomes_N, cluster_N, unscored = _scored(clusters_N, outcomes_N)
    if np.any((outcomes_N != 0) & (outcomes_N != 1)):
        raise NumericError("a rate needs outcomes that are 0, 1 or NaN; use clustered_mean for other scores")
    return _wilson_of_clusters(outcomes_N, cluster_N, outcomes_N.size, unscored, level)


def clustered_fraction(values_N: ArrayLike, clusters_N: ArrayLike, *, trials: int, level: float = LEVEL) -> Estimate:
    """Mean of fractions in [0, 1], such as pass@k per prompt, with the interval of `clustered_rate`.

    A fraction of several 0/1 outcomes varies less than one of them, so that n* (Korn & Graubard 1998) may be above the
    number of rows, and is at most `trials`. When all rows are 0, or all 1, n* is the number of clusters: 0 of 20
    prompts is [0, .16] and not exactly 0.

    Args:
        trials: 0/1 outcomes that all the fractions are made of.
    """
    values_N, cluster_N, unscored = _scored(clusters_N, values_N)
    if np.any((values_N < 0) | (values_N > 1)):
        raise NumericError("a fraction is between 0 and 1; use clustered_mean for other scores")
    return _wilson_of_clusters(values_N, cluster_N, max(trials, values_N.size), unscored, level)


def _wilson_of_clusters(
    outcomes_N: FloatArray, cluster_N: Any, most_trials: int, unscored: int, level: float
) -> Estimate:
    """See `clustered_rate`; `most_trials` bounds the effective sample size."""
    rows, clusters = outcomes_N.size, _count_distinct(cluster_N)
    rate = float(outcomes_N.mean()) if rows else math.nan
    if clusters < 2:
        return Estimate(rate, 0.0, 1.0, rows, clusters, level, unscored)
    if rate in (0.0, 1.0):
        effective = float(clusters)
    else:
        variance = _standard_error(outcomes_N - rate, cluster_N) ** 2
        t_rows, t_clusters = stats.t.ppf((1 + level) / 2, [rows - 1, clusters - 1])
        scaled_binomial_variance = rate * (1 - rate) * float(t_rows / t_clusters) ** 2
        # A variance of 0 is clusters that agree by chance.
        effective = min(scaled_binomial_variance / variance, float(most_trials)) if variance > 0 else float(most_trials)
    low, high = _wilson_bounds(rate, effective, level)
    return Estimate(rate, low, high, rows, clusters, level, unscored)


def wilson(successes: int, n: int, *, level: float = LEVEL) -> Estimate:
    """Rate of `successes` out of `n` independent trials with Wilson's score interval (Wilson 1927)."""
    if n < 0 or not 0 <= successes <= n:
        raise NumericError(f"{successes} successes out of {n} trials is impossible")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, 0, level)
    low, high = _wilson_bounds(successes / n, n, level)
    return Estimate(successes / n, low, high, n, n, level)


def mcnemar_exact(b: int, c: int) -> float:
    """Exact McNemar test: two-sided p-value for `b` tasks only the first solved and `c` only the second solved.

    Under no difference each discordant task is a fair coin, so p is the binomial test of b in b + c at ½ (McNemar
    1947). Two discordant tasks can never do better than p = 0.5.
    """
    if b < 0 or c < 0:
        raise NumericError(f"discordant counts must be ≥ 0, not {b} and {c}")
    return float(stats.binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (Holm 1979) over one family of tests; NaN stays NaN and counts for nothing.

    The i-th smallest of m p-values becomes the largest of (m − k + 1)·p_(k) over k ≤ i, at most 1.
    """
    values = floats(p_values)
    adjusted = np.full(values.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    weighted = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(weighted), 1.0)
    return [float(value) for value in adjusted]


def minimum_detectable_effect(sd: float, n: float, *, power: float = POWER, alpha: float = 1 - LEVEL) -> float:
    """The true mean difference that a two-sided t test on `n` differences finds with probability `power`.

    Args:
        sd: standard deviation of the differences (of cluster means, when clustered).
        n: independent differences.

    Returns:
        in the units of `sd`; inf with fewer than 2 differences; NaN for an unknown `sd`.
    """
    if n < 2:
        return math.inf
    if math.isnan(sd):
        return math.nan
    return sd * _detectable_in_sd(n, power, alpha) if sd else 0.0


@lru_cache(maxsize=1024)
def _detectable_in_sd(n: float, power: float, alpha: float) -> float:
    """`minimum_detectable_effect` in standard deviations. Cached: a page computes it for every difference."""
    freedom = n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, freedom))

    def excess(shift: float) -> float:
        above = stats.nct.sf(critical, freedom, shift)
        below = stats.nct.cdf(-critical, freedom, shift)  # NaN in scipy where it is below about 1e-16
        return float(above + np.nan_to_num(below) - power)

    upper = critical + float(stats.norm.ppf(power))  # the normal approximation; t needs a larger shift with few samples
    while excess(upper) < 0:
        upper *= 1.25
    return float(brentq(excess, 0, upper)) / math.sqrt(n)


def equivalence(comparison: Comparison, margin: float) -> tuple[float, float]:
    """Two p-values of a claim of sameness: that the difference lies within ± margin, and that it lies outside.

    Within: two one-sided t tests (Schuirmann 1987), of δ ≥ margin and of δ ≤ −margin; both must be rejected, so p is
    the larger one. Outside: a t test of |δ| ≤ margin, doubled because its direction is chosen by the data. NaN when
    the comparison has no test.
    """
    gap, error, freedom = comparison.difference.mean, comparison.standard_error, comparison.freedom
    if not freedom > 0:
        return math.nan, math.nan
    if error == 0:
        return float(abs(gap) >= margin), float(abs(gap) <= margin)
    inside = float(stats.t.sf((margin - abs(gap)) / error, freedom))
    outside = float(stats.t.sf((abs(gap) - margin) / error, freedom))
    return inside, min(1.0, 2 * outside)


def repetitions_to_decide(
    comparison: Comparison, *, margin: float | None = None, alpha: float = 1 - LEVEL, most: int = 200
) -> int | None:
    """How many repetitions (seeds) decide a claim with probability `POWER` if difference and spread are as observed.

    Args:
        margin: of a claim of sameness; None asks whether there is a difference.
        alpha: level of the test, after any adjustment.

    Returns:
        None when more than `most` would be needed.
    """
    clusters = comparison.difference.clusters
    fixed_error = comparison.fixed_error
    if not comparison.standard_error > fixed_error or clusters < 2:
        return None
    variance_per_repetition = (comparison.standard_error**2 - fixed_error**2) * clusters
    gap = abs(comparison.difference.mean)
    for n in range(clusters + 1, most + 1):
        error = math.sqrt(fixed_error**2 + variance_per_repetition / n)
        margin_in_errors = None if margin is None else margin / error
        if _power(gap / error, n - 1, alpha, margin_in_errors) >= POWER:
            return n
    return None


def _power(shift: float, freedom: int, alpha: float, margin: float | None) -> float:
    """Probability that a t test decides; `shift` ≥ 0 and `margin` in standard errors."""
    two_sided = float(stats.t.ppf(1 - alpha / 2, freedom))
    if margin is None:
        return float(stats.nct.sf(two_sided, freedom, shift))
    if shift >= margin:  # sameness is false: what can be decided is that the difference lies outside
        return float(stats.nct.sf(two_sided, freedom, shift - margin))
    one_sided = float(stats.t.ppf(1 - alpha, freedom))
    above_minus_margin = float(stats.nct.sf(one_sided, freedom, margin + shift))
    below_margin = float(stats.nct.sf(one_sided, freedom, margin - shift))
    return above_minus_margin + below_margin - 1  # both tests must succeed: P(A and B) ≥ P(A) + P(B) − 1


def _scored(clusters_N: ArrayLike, values_N: ArrayLike) -> tuple[FloatArray, np.ndarray, int]:
    """Keep scored rows: (values (n,), their clusters (n,), rows left out). Refuses ±inf."""
    values = floats(values_N)
    clusters = np.asarray(clusters_N).ravel()
    if values.shape != clusters.shape:
        raise NumericError(f"{values.size} values came with {clusters.size} cluster labels; give one label per value")
    if np.isinf(values).any():
        raise NumericError(f"{int(np.isinf(values).sum())} of {values.size} values are infinite; unscored rows are NaN")
    scored: BoolArray = ~np.isnan(values)
    return values[scored], clusters[scored], int((~scored).sum())


def _count_distinct(cluster_N: np.ndarray) -> int:
    return int(np.unique(cluster_N).size)


def _standard_error(residuals_N: FloatArray, cluster_N: np.ndarray) -> float:
    """CR1 standard error of a mean from its (N,) residuals; inf with fewer than 2 clusters."""
    _, index_N = np.unique(cluster_N, return_inverse=True)
    sums_G = np.bincount(index_N, weights=residuals_N) if residuals_N.size else np.zeros(0)
    if sums_G.size < 2:
        return math.inf
    return float(math.sqrt(sums_G.size / (sums_G.size - 1) * np.square(sums_G).sum()) / residuals_N.size)


def _interval(mean: float, error: float, cluster_N: np.ndarray, level: float, unscored: int) -> Estimate:
    """The t interval mean ± t_{G−1}·error."""
    clusters = _count_distinct(cluster_N)
    if clusters < 2 or not math.isfinite(error):
        return Estimate(mean, -math.inf, math.inf, cluster_N.size, clusters, level, unscored)
    half_width = float(stats.t.ppf((1 + level) / 2, clusters - 1)) * error
    return Estimate(mean, mean - half_width, mean + half_width, cluster_N.size, clusters, level, unscored)


def _wilson_bounds(rate: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a rate of `n` trials, which need not be a whole number."""
    z2 = float(stats.norm.ppf((1 + level) / 2)) ** 2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half_width = math.sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = max(0.0, centre - half_width)
    high = min(1.0, centre + half_width)
    return min(rate, low), max(rate, high)  # at a rate of 0 or 1 rounding may leave it just outside
