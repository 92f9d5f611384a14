"""Estimates with intervals: means, differences, ratios and rates, clustered by prompt, task or seed.

Rows of the same prompt are not independent, so every interval here is based on the number of clusters, not of rows.
NaN means "unscored": such rows are left out and counted in `Estimate.unscored`, never treated as 0.

Not implemented: small-sample corrections beyond CR1 (CR2, wild bootstrap), two-way clustering, multiple imputation.
The intervals are t intervals; with fewer than about 10 strongly unequal clusters they are somewhat too narrow.
"""

from __future__ import annotations

import dataclasses
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
from rlhf_lab.statistics.estimates import LEVEL, POWER, Comparison, Estimate, cluster_labels, floats

MAX_REPETITIONS = 200
"""Maximum number of repetitions that `repetitions_to_decide` considers."""


def clustered_mean(values_N: ArrayLike, clusters_N: ArrayLike, *, min_sd_N: ArrayLike | None = None) -> Estimate:
    """Return the mean with a cluster-robust t interval.

    CR1 (Cameron & Miller 2015, eq. 11-12) for a model with only an intercept, with G clusters and n rows in total:
        S_g = Σ_{i in g} (y_i − ȳ)      V = G/(G−1) · Σ_g S_g² / n²      ȳ ± t_{G−1} · √V
    With one row per cluster this is the ordinary t interval. With one cluster the interval is infinite.

    Args:
        clusters_N: (N,) cluster of each row (prompt, task or seed), of any hashable type; so in all functions here.
        min_sd_N: (N,) lower bound on the standard deviation of each value; see `paired_difference`.
    """
    scored_N = ~np.isnan(floats(values_N))
    values_N, cluster_N, unscored = _scored_rows(clusters_N, values_N)
    mean = float(values_N.mean()) if values_N.size else math.nan
    error = _standard_error(values_N - mean, cluster_N)
    if min_sd_N is not None:
        error = max(error, min_error(floats(min_sd_N)[scored_N], cluster_N))
    return _interval(mean, error, cluster_N, unscored)


def seed_mean(values_S: ArrayLike) -> Estimate:
    """Return the mean over seeds with a t interval; each of the (S,) values comes from a separate run."""
    values_S = floats(values_S)
    return clustered_mean(values_S, np.arange(values_S.size))


def paired_difference(
    a_N: ArrayLike, b_N: ArrayLike, clusters_N: ArrayLike, *, min_sd_N: ArrayLike | None = None
) -> Comparison:
    """Compare a with b on the same rows: clustered mean of a − b with a t test on G−1 degrees of freedom.

    A pair counts only if both sides are scored. The minimum detectable effect uses the cluster-robust standard error
    as if it were that of G independent differences.

    A few clusters can differ by almost the same amount by chance, which says little about the next cluster. The
    standard error is therefore at least that of differences with the standard deviations `min_sd_N`:
        max(SE, √(Σ_g (Σ_{i in g} min_sd_i)²)/N)
    The bound is continuous in the data: equal differences get the same result as nearly equal ones.

    Args:
        min_sd_N: (N,) lower bound on the standard deviation of each difference; None computes it with `min_sd` as for
            values without a stated error.
    Raises:
        NumericError: the two sides have different lengths.
    """
    a_N, b_N = floats(a_N), floats(b_N)
    if a_N.shape != b_N.shape:
        raise NumericError(
            f"a paired comparison needs the same number of values on both sides, not {a_N.size} and {b_N.size}"
        )
    scored_N = ~np.isnan(a_N - b_N)
    difference_N, cluster_N, unscored = _scored_rows(clusters_N, a_N - b_N)
    if min_sd_N is not None:
        lower_N = floats(min_sd_N)[scored_N]
    elif difference_N.any():
        lower_N = np.hypot(min_sd(a_N), min_sd(b_N))[scored_N]
    else:  # both sides are equal on every row to the last digit, so they are the same
        lower_N = np.zeros_like(difference_N)
    mean = float(difference_N.mean()) if difference_N.size else math.nan
    observed_error = _standard_error(difference_N - mean, cluster_N)
    error = max(observed_error, min_error(lower_N, cluster_N))
    clusters = _count_distinct(cluster_N)
    test = "paired t test, cluster-robust (CR1)"
    if error > observed_error:
        test += ", with the least standard deviation that the measurement allows"
    return t_comparison(mean, error, clusters - 1, test, n=cluster_N.size, clusters=clusters, unscored=unscored)


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
) -> Comparison:
    """Return a difference with t interval, p-value and minimum detectable effect from its standard error.

    Without a finite error or without degrees of freedom there is no test. If the error is 0, the difference is exact.
    See `Comparison` for the arguments.
    """
    if not (freedom > 0 and math.isfinite(error)):
        unbounded = Estimate(gap, -math.inf, math.inf, n, clusters, unscored=unscored)
        return Comparison(unbounded, math.nan, math.inf, "none: fewer than 2 clusters")
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    estimate = Estimate(gap, gap - half_width, gap + half_width, n, clusters, unscored=unscored)
    p_value = float(2 * stats.t.sf(abs(gap) / error, freedom)) if error else float(gap == 0)
    comparison = Comparison(
        estimate, p_value, math.nan, test, standard_error=error, freedom=freedom, fixed_error=fixed_error
    )
    return at_level(comparison, 1 - LEVEL)


MEASURED_SHARE = 0.1
"""Lower bound on the standard deviation of a measured value, as a multiple of the standard error of its measurement. If
only the measurement varied, three values would be closer together than this in 1 % of cases (√(χ²_{2, .01}/2) = .1)."""

RESOLUTION = 0.001
"""Lower bound on the standard deviation of a value without a stated error, as a fraction of its absolute value."""


def min_sd(values_N: ArrayLike, errors_N: ArrayLike | None = None) -> FloatArray:
    """Return a lower bound on the standard deviation, (N,), of each of N repeated measurements.

    It is `MEASURED_SHARE` of the standard error if one is stated, else `RESOLUTION` of the absolute value.
    """
    values_N = floats(values_N)
    errors_N = np.full(values_N.shape, np.nan) if errors_N is None else floats(errors_N)
    return np.where(np.isnan(errors_N), RESOLUTION * np.abs(values_N), MEASURED_SHARE * errors_N)


def min_sd_of_outcomes(a_N: ArrayLike, b_N: ArrayLike) -> FloatArray:
    """Return `min_sd`, (N,), for differences of 0/1 outcomes: a few equal differences say little about the next one.

    With n₊ pairs in which only a is 1 and n₋ pairs in which only b is 1, half a pair is added to each count:
        q = (n₊ + n₋ + 1)/(N + 1),   d = (n₊ − n₋)/(N + 1),   sd = √(q − d²)
    """
    a_N, b_N = floats(a_N), floats(b_N)
    difference_N = (a_N - b_N)[~np.isnan(a_N - b_N)]
    pairs = difference_N.size + 1
    discordant = (np.abs(difference_N).sum() + 1) / pairs
    mean = difference_N.sum() / pairs
    return np.full(a_N.shape, math.sqrt(discordant - mean**2))


def min_error(min_sd_N: FloatArray, cluster_N: np.ndarray) -> float:
    """Return the standard error of a mean of values with these standard deviations, fully correlated in a cluster."""
    if not min_sd_N.size:
        return 0.0
    _, index_N = np.unique(cluster_N, return_inverse=True)
    sums_G = np.bincount(index_N, weights=min_sd_N)  # full correlation in a cluster: deviations add up, not variances
    return float(math.sqrt(np.square(sums_G).sum()) / min_sd_N.size)


def unpaired_difference(a_N: ArrayLike, a_clusters_N: ArrayLike, b_M: ArrayLike, b_clusters_M: ArrayLike) -> Comparison:
    """Compare a with b on unrelated rows, such as responses to different prompts: mean of a − mean of b.

    Welch's t test (Welch 1947) with the CR1 standard errors of the two sides, s_a and s_b, on G_a and G_b clusters:
        (ā − b̄) / √(s_a² + s_b²),   ν = (s_a² + s_b²)² / (s_a⁴/(G_a − 1) + s_b⁴/(G_b − 1))
    With one row per cluster this is the ordinary Welch test. `paired_difference` has more power for paired rows.
    """
    a_values, a_cluster, a_unscored = _scored_rows(a_clusters_N, a_N)
    b_values, b_cluster, b_unscored = _scored_rows(b_clusters_M, b_M)
    a_mean = float(a_values.mean()) if a_values.size else math.nan
    b_mean = float(b_values.mean()) if b_values.size else math.nan
    gap = a_mean - b_mean
    a_groups, b_groups = _count_distinct(a_cluster), _count_distinct(b_cluster)
    rows = a_values.size + b_values.size
    groups = a_groups + b_groups
    unscored = a_unscored + b_unscored
    if min(a_groups, b_groups) < 2:
        unbounded = Estimate(gap, -math.inf, math.inf, rows, groups, unscored=unscored)
        return Comparison(unbounded, math.nan, math.inf, "none: fewer than 2 clusters on a side")
    # As in `paired_difference`, clusters that agree by chance do not make the error arbitrarily small.
    a_error = max(_standard_error(a_values - a_mean, a_cluster), min_error(min_sd(a_values), a_cluster))
    b_error = max(_standard_error(b_values - b_mean, b_cluster), min_error(min_sd(b_values), b_cluster))
    error = math.hypot(a_error, b_error)
    denominator = a_error**4 / (a_groups - 1) + b_error**4 / (b_groups - 1)
    # If the error is 0, all values of both sides are 0, and the degrees of freedom do not matter.
    freedom = error**4 / denominator if denominator else float(groups - 2)
    test = "unpaired t test, cluster-robust (Welch, CR1)"
    return t_comparison(gap, error, freedom, test, n=rows, clusters=groups, unscored=unscored)


def error_of_interval(estimate: Estimate) -> float:
    """Return the standard error implied by a normal interval: half-width / z_level; inf if it is unbounded."""
    half_width = (estimate.high - estimate.low) / 2
    return half_width / float(stats.norm.ppf((1 + estimate.level) / 2))


def unpaired_from_intervals(a: Estimate, b: Estimate) -> tuple[float, float]:
    """Return (z, two-sided p) of b − a from two intervals alone, assuming independence and half-widths of z_level · s.

        z = (b̄ − ā) / √(s_a² + s_b²)

    NaN if a side has no interval. Two intervals that overlap may still differ significantly by this test.
    """
    # n = 0 marks a bare number, which was stored without an interval.
    if not (a.bounded and b.bounded and a.n and b.n):
        return math.nan, math.nan
    error = math.hypot(error_of_interval(a), error_of_interval(b))
    z = (b.mean - a.mean) / error if error else math.nan
    return z, float(2 * stats.norm.sf(abs(z)))


def ratio_of_means(numerator_N: ArrayLike, denominator_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return Σ numerator / Σ denominator with a clustered delta-method interval, e.g. reward gained per nat of KL.

    Linearised residual (Cochran 1977, §2.11): e_i = (x_i − R·d_i) / d̄; V is that of a clustered mean of e. The
    delta method fails if the denominator is not clearly different from zero. The interval is therefore infinite if the
    interval of the denominator contains 0, as Fieller's interval would be. A row counts if both values are scored.
    """
    numerator_N, denominator_N = floats(numerator_N), floats(denominator_N)
    missing_N = np.isnan(numerator_N) | np.isnan(denominator_N)
    numerator_n, cluster_n, unscored = _scored_rows(clusters_N, np.where(missing_N, np.nan, numerator_N))
    denominator_n = denominator_N[~missing_N]
    denominator = clustered_mean(denominator_n, cluster_n)
    if not denominator.mean:
        return Estimate(math.nan, -math.inf, math.inf, numerator_n.size, denominator.clusters, unscored=unscored)
    ratio = float(numerator_n.mean() / denominator.mean) if numerator_n.size else math.nan
    error = math.inf
    if denominator.bounded and denominator.excludes_zero:
        error = _standard_error((numerator_n - ratio * denominator_n) / denominator.mean, cluster_n)
    return _interval(ratio, error, cluster_n, unscored)


def clustered_rate(outcomes_N: ArrayLike, clusters_N: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Return the rate of 0/1 outcomes with a clustered Wilson interval, which is always inside [0, 1].

    Wilson's interval with the effective sample size of Korn & Graubard (1998; compared by Dean & Pagano 2015). It
    accounts for a variance that is estimated from G clusters of n rows with only G−1 degrees of freedom. With V as in
    `clustered_mean`:
        n* = p(1−p)/V · (t_{n−1}/t_{G−1})², at most n
    The maximum n* = n prevents clusters that agree by chance from giving a narrower interval than independent rows. If
    all outcomes are equal, V carries no information and n* is G, so 8 of 8 is not reported as exactly 1.

    Simulated coverage with 3 to 40 clusters of 20 rows is 0.94–0.99. It falls to 0.87–0.90 if a few clusters contain
    all successes (rate 0.05 with a correlation of 0.2 or more within clusters): V is then underestimated with the rate.
    """
    outcomes_N, cluster_N, unscored = _scored_rows(clusters_N, outcomes_N)
    if np.any((outcomes_N != 0) & (outcomes_N != 1)):
        raise NumericError("a rate needs outcomes that are 0, 1 or NaN; use clustered_mean for other scores")
    return _wilson_of_clusters(outcomes_N, cluster_N, outcomes_N.size, unscored, level)


def clustered_fraction(values_N: ArrayLike, clusters_N: ArrayLike, *, trials: int) -> Estimate:
    """Return the mean of fractions in [0, 1], such as pass@k per prompt, with the interval of `clustered_rate`.

    A fraction of several 0/1 outcomes varies less than a single outcome. The effective sample size n* (Korn & Graubard
    1998) may therefore exceed the number of rows; its maximum is `trials`. If all rows are 0, or all are 1, n* is the
    number of clusters: the interval of 0 of 20 prompts is [0, 0.16] and not exactly 0.
    """
    values_N, cluster_N, unscored = _scored_rows(clusters_N, values_N)
    if np.any((values_N < 0) | (values_N > 1)):
        raise NumericError("a fraction must be between 0 and 1; use clustered_mean for other scores")
    return _wilson_of_clusters(values_N, cluster_N, max(trials, values_N.size), unscored, LEVEL)


def _wilson_of_clusters(
    outcomes_N: FloatArray, cluster_N: Any, max_trials: int, unscored: int, level: float
) -> Estimate:
    """Return the rate with the interval of `clustered_rate`; `max_trials` bounds the effective sample size."""
    rows, clusters = outcomes_N.size, _count_distinct(cluster_N)
    rate = float(outcomes_N.mean()) if rows else math.nan
    if clusters < 2:
        return Estimate(rate, 0.0, 1.0, rows, clusters, level, unscored)
    if rate in (0.0, 1.0):
        effective = float(clusters)
    else:
        variance = _standard_error(outcomes_N - rate, cluster_N) ** 2
        # The ratio of t quantiles corrects for the few degrees of freedom of the variance.
        t_rows, t_clusters = stats.t.ppf((1 + level) / 2, [rows - 1, clusters - 1])
        scaled_binomial_variance = rate * (1 - rate) * float(t_rows / t_clusters) ** 2
        effective = float(max_trials)
        if variance > 0:  # it is 0 if all clusters have the same rate by chance
            effective = min(scaled_binomial_variance / variance, effective)
    low, high = _wilson_bounds(rate, effective, level)
    return Estimate(rate, low, high, rows, clusters, level, unscored)


def wilson(successes: int, n: int) -> Estimate:
    """Return the rate of `successes` out of `n` independent trials with Wilson's score interval (Wilson 1927)."""
    if n < 0 or not 0 <= successes <= n:
        raise NumericError(f"{successes} successes out of {n} trials is impossible; 0 ≤ successes ≤ n is needed")
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, 0)
    low, high = _wilson_bounds(successes / n, n, LEVEL)
    return Estimate(successes / n, low, high, n, n)


def mcnemar_exact(b: int, c: int) -> float:
    """Return the two-sided p-value of the exact McNemar test (McNemar 1947).

    If the two sides do not differ, each discordant task is a fair coin flip. The p-value is therefore that of the
    binomial test of b in b + c at ½, for b tasks that only the first solved and c that only the second solved. Two
    discordant tasks cannot give less than p = 0.5.
    """
    if b < 0 or c < 0:
        raise NumericError(f"discordant counts must be ≥ 0, not {b} and {c}")
    return float(stats.binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down adjustment (Holm 1979) over one family of tests.

    The i-th smallest of m p-values becomes the maximum of (m − k + 1)·p_(k) over k ≤ i, capped at 1. NaN stays NaN and
    does not count as a test.
    """
    values = floats(p_values)
    adjusted = np.full(values.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    weighted = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(weighted), 1.0)
    return [float(value) for value in adjusted]


def minimum_detectable_effect(sd: float, n: float, *, alpha: float = 1 - LEVEL) -> float:
    """Return the true mean difference that a two-sided t test on `n` differences finds with probability `POWER`.

    Args:
        sd: standard deviation of the differences (of cluster means, if clustered).
        n: number of independent differences.
        alpha: level of the test.

    Returns:
        effect in the units of `sd`; inf with fewer than 2 differences, NaN if `sd` is NaN.
    """
    if n < 2:
        return math.inf
    if math.isnan(sd):
        return math.nan
    return sd * _detectable_in_sd(n, alpha) if sd else 0.0


def at_level(comparison: Comparison, alpha: float) -> Comparison:
    """Return the comparison with the minimum detectable effect of its t test at the level `alpha`."""
    if not comparison.freedom > 0:
        return comparison
    # A t test on ν + 1 differences with standard deviation error·√(ν + 1) has this error and ν degrees of freedom.
    count = comparison.freedom + 1
    effect = minimum_detectable_effect(comparison.standard_error * math.sqrt(count), count, alpha=alpha)
    return dataclasses.replace(comparison, minimum_detectable_effect=effect)


@lru_cache(maxsize=1024)
def _detectable_in_sd(n: float, alpha: float) -> float:
    """Return `minimum_detectable_effect` in standard deviations. Cached because a page needs it for each difference."""
    freedom = n - 1
    critical = float(stats.t.ppf(1 - alpha / 2, freedom))

    def excess(shift: float) -> float:
        above = stats.nct.sf(critical, freedom, shift)
        below = stats.nct.cdf(-critical, freedom, shift)  # scipy returns NaN for values below about 1e-16
        return float(above + np.nan_to_num(below) - POWER)

    upper = critical + float(stats.norm.ppf(POWER))  # normal approximation; few samples need a larger shift
    # brentq needs a bracket with a sign change, so enlarge it until it contains the root.
    while excess(upper) < 0:
        upper *= 1.25
    return float(brentq(excess, 0, upper)) / math.sqrt(n)


def equivalence(comparison: Comparison, margin: float) -> tuple[float, float]:
    """Return two p-values of an equivalence claim: the difference is within ± margin, and it is outside.

    Within: two one-sided t tests (Schuirmann 1987), of δ ≥ margin and of δ ≤ −margin. Both must be rejected, so p is
    the larger of the two. Outside: a t test of |δ| ≤ margin, doubled because the data determine its direction. NaN if
    the comparison has no test.
    """
    gap, error, freedom = comparison.difference.mean, comparison.standard_error, comparison.freedom
    if not freedom > 0:
        return math.nan, math.nan
    if error == 0:
        return float(abs(gap) >= margin), float(abs(gap) <= margin)
    # The one-sided test with the larger p-value is that of the margin nearer to the difference.
    inside = float(stats.t.sf((margin - abs(gap)) / error, freedom))
    outside = float(stats.t.sf((abs(gap) - margin) / error, freedom))
    return inside, min(1.0, 2 * outside)


def repetitions_to_decide(
    comparison: Comparison, *, margin: float | None = None, alpha: float = 1 - LEVEL
) -> int | None:
    """Return the number of repetitions (seeds) that decide a claim with probability `POWER`, up to MAX_REPETITIONS.

    None if that many do not suffice. The difference and its standard deviation are assumed to stay as observed.

    Args:
        margin: margin of an equivalence claim; None tests for a difference.
        alpha: level of the test, after any adjustment.
    """
    clusters = comparison.difference.clusters
    fixed_error = comparison.fixed_error
    # Without variance between repetitions, more of them cannot decide anything.
    if not comparison.standard_error > fixed_error or clusters < 2:
        return None
    variance_per_repetition = (comparison.standard_error**2 - fixed_error**2) * clusters
    gap = abs(comparison.difference.mean)
    for n in range(clusters + 1, MAX_REPETITIONS + 1):
        error = math.sqrt(fixed_error**2 + variance_per_repetition / n)
        if _power(gap / error, n - 1, alpha, None if margin is None else margin / error) >= POWER:
            return n
    return None


def _power(shift: float, freedom: int, alpha: float, margin: float | None) -> float:
    """Return the probability that a t test decides; `shift` ≥ 0 and `margin` are in standard errors."""
    two_sided = float(stats.t.ppf(1 - alpha / 2, freedom))
    if margin is None:
        return float(stats.nct.sf(two_sided, freedom, shift))
    if shift >= margin:  # equivalence is false, so the only decidable claim is that the difference is outside
        return float(stats.nct.sf(two_sided, freedom, shift - margin))
    one_sided = float(stats.t.ppf(1 - alpha, freedom))
    above_minus_margin = float(stats.nct.sf(one_sided, freedom, margin + shift))
    below_margin = float(stats.nct.sf(one_sided, freedom, margin - shift))
    return above_minus_margin + below_margin - 1  # both tests must succeed: P(A and B) ≥ P(A) + P(B) − 1


def _scored_rows(clusters_N: ArrayLike, values_N: ArrayLike) -> tuple[FloatArray, np.ndarray, int]:
    """Return the scored rows as (values (n,), their clusters (n,), number of rows left out).

    Raises:
        NumericError: the lengths differ, or a value is infinite.
    """
    values = floats(values_N)
    clusters = cluster_labels(clusters_N)
    if values.shape != clusters.shape:
        raise NumericError(f"{values.size} values came with {clusters.size} cluster labels; give one label per value")
    if infinite := int(np.isinf(values).sum()):
        raise NumericError(f"{infinite} of {values.size} values are infinite; use NaN for unscored rows")
    scored: BoolArray = ~np.isnan(values)
    return values[scored], clusters[scored], int((~scored).sum())


def _count_distinct(cluster_N: np.ndarray) -> int:
    return int(np.unique(cluster_N).size)


def _standard_error(residuals_N: FloatArray, cluster_N: np.ndarray) -> float:
    """Return the CR1 standard error of a mean from its (N,) residuals; inf with fewer than 2 clusters."""
    _, index_N = np.unique(cluster_N, return_inverse=True)
    sums_G = np.bincount(index_N, weights=residuals_N) if residuals_N.size else np.zeros(0)
    if sums_G.size < 2:
        return math.inf
    variance = sums_G.size / (sums_G.size - 1) * np.square(sums_G).sum()
    return float(math.sqrt(variance) / residuals_N.size)


def _interval(mean: float, error: float, cluster_N: np.ndarray, unscored: int) -> Estimate:
    clusters = _count_distinct(cluster_N)
    if clusters < 2 or not math.isfinite(error):
        return Estimate(mean, -math.inf, math.inf, cluster_N.size, clusters, unscored=unscored)
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, clusters - 1)) * error
    return Estimate(mean, mean - half_width, mean + half_width, cluster_N.size, clusters, unscored=unscored)


def _wilson_bounds(rate: float, n: float, level: float) -> tuple[float, float]:
    """Return Wilson's score interval of a rate of `n` trials; `n` need not be an integer."""
    z2 = float(stats.norm.ppf((1 + level) / 2)) ** 2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    variance = rate * (1 - rate) / n + z2 / (4 * n * n)
    half_width = math.sqrt(z2 * variance) / (1 + z2 / n)
    low = max(0.0, centre - half_width)
    high = min(1.0, centre + half_width)
    return min(rate, low), max(rate, high)  # at a rate of 0 or 1, rounding may put the rate just outside
