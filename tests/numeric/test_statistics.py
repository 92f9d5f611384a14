"""Statistics against arithmetic on the page, against scipy and statsmodels, and against repeated sampling."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired
from support import paired_over_seeds

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.estimates import Comparison, Estimate, check_mean, format_estimate
from rlhf_lab.statistics.inference import (
    clustered_mean,
    clustered_rate,
    equivalence,
    holm,
    mcnemar_exact,
    min_sd,
    min_sd_of_outcomes,
    minimum_detectable_effect,
    paired_difference,
    ratio_of_means,
    repetitions_to_decide,
    t_comparison,
    unpaired_difference,
    unpaired_from_intervals,
    wilson,
)


def test_clustered_mean_by_hand():
    # ȳ = (1+2+4+5)/4 = 3. Cluster sums of residuals: a: −2−1 = −3, b: 1+2 = 3.
    # V = 2/1 · (9+9)/16 = 2.25, SE = 1.5, t_{1, .975} = tan(0.475π) = 12.7062.
    estimate = clustered_mean([1, 2, 4, 5], ["a", "a", "b", "b"])
    assert estimate.mean == 3.0
    assert estimate.high - estimate.mean == pytest.approx(12.7062 * 1.5, rel=1e-5)
    assert (estimate.n, estimate.clusters) == (4, 2)


def test_clustered_mean_is_statsmodels_cluster_covariance():
    rng = np.random.default_rng(0)
    cluster_N = rng.integers(0, 9, 60)
    values_N = rng.normal(size=60) + rng.normal(size=9)[cluster_N]
    fit = sm.OLS(values_N, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": cluster_N}, use_t=True)
    low, high = fit.conf_int()[0]
    estimate = clustered_mean(values_N, cluster_N)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-9)


def test_clusters_may_be_long_texts():
    """An array of texts has the width of the longest in every row: 4 bytes x 100,000 characters x 1,000 rows."""
    prompts = [f"prompt {i // 2}" for i in range(998)] + 2 * ["x" * 100_000]
    values = np.arange(1000) % 3
    tracemalloc.start()
    by_text = clustered_mean(values, prompts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    by_number = clustered_mean(values, np.arange(1000) // 2)
    assert by_text.clusters == 500 and by_text.high == pytest.approx(by_number.high)


def test_one_cluster_has_no_interval():
    estimate = clustered_mean([1.0, 2.0, 3.0], [7, 7, 7])
    assert (estimate.mean, estimate.low, estimate.high) == (2.0, -math.inf, math.inf)
    assert not estimate.bounded and not estimate.excludes_zero
    assert math.isnan(clustered_mean([], []).mean)
    comparison = paired_over_seeds([5.0], [1.0])
    assert comparison.difference.mean == 4.0
    assert math.isnan(comparison.p_value) and comparison.minimum_detectable_effect == math.inf


def test_nan_and_none_are_left_out_and_counted():
    estimate = clustered_mean([1.0, math.nan, 3.0, None], [0, 1, 2, 3])
    assert (estimate.mean, estimate.n, estimate.clusters, estimate.unscored) == (2.0, 2, 2, 2)
    nothing = clustered_mean([math.nan, math.nan], [0, 1])
    assert math.isnan(nothing.mean) and nothing.unscored == 2


def test_infinite_scores_and_missing_labels_are_refused():
    with pytest.raises(NumericError, match="infinite"):
        clustered_mean([1.0, math.inf], [0, 1])
    with pytest.raises(NumericError, match="one label per value"):
        clustered_mean([1.0, 2.0], [0])


def test_paired_difference_is_the_paired_t_test():
    a, b = np.array([3.0, 5.0, 6.0, 9.0]), np.array([2.0, 5.5, 4.0, 6.0])
    comparison = paired_over_seeds(a, b)
    assert comparison.difference.mean == pytest.approx((1 - 0.5 + 2 + 3) / 4)
    assert comparison.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    assert comparison.minimum_detectable_effect == pytest.approx(minimum_detectable_effect(np.std(a - b, ddof=1), 4))


def test_paired_difference_drops_half_scored_pairs():
    comparison = paired_difference([1.0, 2.0, math.nan, 4.0], [0.5, math.nan, 1.0, 1.0], [0, 1, 2, 3])
    assert (comparison.difference.n, comparison.difference.unscored) == (2, 2)
    assert comparison.difference.mean == pytest.approx((0.5 + 3.0) / 2)


def test_equal_differences_are_judged_like_nearly_equal_ones():
    # 3.04 tokens fewer in three of three seeds, each run's mean known to ±.3: least sd .1·√(.3² + .3²) = .04243,
    # standard error .04243/√3 = .02449, t = 3.04/.02449 = 124.1 on 2 degrees of freedom.
    a, b, errors = np.array([20.0, 21.0, 19.5]), np.array([23.04, 24.04, 22.54]), np.full(3, 0.3)
    smallest = np.hypot(min_sd(a, errors), min_sd(b, errors))
    comparison = paired_difference(a, b, range(3), min_sd_N=smallest)
    assert comparison.standard_error == pytest.approx(0.1 * math.hypot(0.3, 0.3) / math.sqrt(3))
    assert comparison.p_value == pytest.approx(2 * stats.t.sf(124.12, 2), rel=1e-3) and comparison.p_value <= 0.05
    for jitter in (1e-12, 1e-9, 1e-6, 1e-3):
        nearly = paired_difference(a + jitter * np.array([1, -1, 0]), b, range(3), min_sd_N=smallest)
        assert nearly.p_value == pytest.approx(comparison.p_value, rel=0.01)
        assert nearly.difference.high == pytest.approx(comparison.difference.high, abs=0.002)
    assert "least standard deviation" in comparison.test


def test_values_that_state_no_error_are_known_to_a_thousandth():
    # 2 − 1, 3 − 2, 4 − 3: the sd of a difference is ≥ .001·√(a² + b²); Σ = .001²·(5 + 13 + 25), SE = √Σ/3.
    comparison = paired_over_seeds([2, 3, 4], [1, 2, 3])
    assert comparison.standard_error == pytest.approx(0.001 * math.sqrt(43) / 3)
    same = paired_over_seeds([3.5, 2.5], [3.5, 2.5])  # equal to the last digit: no difference, no doubt
    assert (same.p_value, same.difference.low, same.difference.high) == (1.0, 0.0, 0.0)


def outcomes(a: list[int], b: list[int]) -> Comparison:
    return paired_difference(a, b, range(len(a)), min_sd_N=min_sd_of_outcomes(a, b))


def test_a_few_equal_outcomes_prove_little():
    # 3 of 3 against 0 of 3: q = (3 + 1)/4, d = 3/4, sd = √(1 − 9/16) = .6614, t = 1/(.6614/√3) = 2.619, ν = 2.
    three, four = (outcomes([1] * n, [0] * n) for n in (3, 4))
    assert three.p_value == pytest.approx(2 * stats.t.sf(2.6186, 2), rel=1e-4) and three.p_value > 0.05
    assert four.p_value <= 0.05  # sd = √(1 − (4/5)²) = .6, t = 1/(.6/2) = 3.33, ν = 3: p = .045
    # The same rates with a discordant pair reversed; and outcomes that agree are not known to stay so.
    assert outcomes([1, 1, 1, 0], [0, 0, 0, 1]).p_value > 0.05
    assert outcomes([1, 1, 1], [1, 1, 1]).difference.high > 0.5


def test_outcomes_are_rarely_told_apart_by_chance():
    # Two independent coins with the same rate, exactly: the fraction of all tables that are called different.
    for seeds in (3, 5, 10):
        for rate in (0.1, 0.5, 0.9):
            differ, wrong = rate * (1 - rate), 0.0
            for plus, minus in itertools.product(range(seeds + 1), repeat=2):
                if plus + minus > seeds:
                    continue
                a = [1] * plus + [0] * (seeds - plus)
                b = [0] * plus + [1] * minus + [0] * (seeds - plus - minus)
                ways = math.comb(seeds, plus) * math.comb(seeds - plus, minus)
                chance = ways * differ ** (plus + minus) * (1 - 2 * differ) ** (seeds - plus - minus)
                wrong += chance * (outcomes(a, b).p_value <= 0.05)
            assert wrong < 0.05, (seeds, rate)


def test_equivalence_is_two_one_sided_tests():
    # d = .1, SE = .2/√4 = .1, ν = 3, margin .5: inside t = (.5 − .1)/.1 = 4, the other side is further away.
    comparison = paired_over_seeds([1.3, 1.1, 0.9, 1.1], [1.0, 1.0, 1.0, 1.0])
    error = comparison.standard_error
    inside, outside = equivalence(comparison, 0.5)
    assert inside == pytest.approx(stats.t.sf((0.5 - 0.1) / error, 3)) and outside == 1.0
    low, high = ttost_paired(np.array([1.3, 1.1, 0.9, 1.1]), np.ones(4), -0.5, 0.5)[1:]
    assert inside == pytest.approx(max(low[1], high[1]))
    assert equivalence(comparison, 0.01)[1] == pytest.approx(2 * stats.t.sf((0.1 - 0.01) / error, 3))


def test_an_exact_difference_is_no_doubt_and_no_cliff():
    # No spread and no floor: equal sides have p = 1, others p = 0.
    assert paired_difference([1, 1, 1], [3, 3, 3], range(3), min_sd_N=np.zeros(3)).p_value == 0.0
    assert paired_difference([3, 3, 3], [3, 3, 3], range(3), min_sd_N=np.zeros(3)).p_value == 1.0
    # Several jobs of one seed are not several repetitions for the floor either: Σ_g (k·sd)² = G·k²·sd², N = k·G.
    errors = [
        paired_difference(np.ones(3 * k), np.zeros(3 * k), np.arange(3 * k) % 3, min_sd_N=np.full(3 * k, 0.3))
        for k in (1, 2, 4)
    ]
    assert [found.standard_error for found in errors] == pytest.approx([0.3 / math.sqrt(3)] * 3)


def test_more_seeds_do_not_make_the_part_of_the_prompts_smaller():
    # Standard error .5 of which √.24 = .4899 stays: at most .24/.25 of the variance, so a gap of .5 is never found.
    found = t_comparison(0.5, 0.5, 4, "a test", n=5, clusters=5, fixed_error=math.sqrt(0.24))
    assert repetitions_to_decide(found) is None
    assert repetitions_to_decide(t_comparison(0.5, 0.5, 4, "a test", n=5, clusters=5)) is not None


def test_the_detectable_difference_of_three_seeds_is_hardly_known():
    # s·√(ν/χ²): ν = 2, χ²_{.975} = 7.378, χ²_{.025} = .05064: from .5207 to 6.285 times.
    comparison = paired_over_seeds([1.0, 2.0, 4.0], [0.5, 1.0, 1.0])
    low, high = comparison.detectable_range()
    assert (low, high) == pytest.approx(
        (0.5207 * comparison.minimum_detectable_effect, 6.285 * comparison.minimum_detectable_effect), rel=1e-3
    )


def test_the_seeds_that_would_decide_have_the_power():
    comparison = paired_over_seeds([1.6, 0.2, 1.2], [0.0, 0.0, 0.0])  # d = 1, sd .721
    needed = repetitions_to_decide(comparison)
    sd = comparison.standard_error * math.sqrt(3)
    power = TTestPower().power(1.0 / sd, needed, 0.05)
    assert power >= 0.8 > TTestPower().power(1.0 / sd, needed - 1, 0.05)
    assert repetitions_to_decide(paired_over_seeds([1.0, -1.0, 0.01], [0.0, 0.0, 0.0])) is None
    rng = np.random.default_rng(0)
    small = paired_over_seeds([0.3, -0.3, 0.18], np.zeros(3))  # a claim of sameness within .3
    count = repetitions_to_decide(small, margin=0.3)
    draws = rng.normal(small.difference.mean, small.standard_error * math.sqrt(3), size=(2000, count))
    shown = np.mean([equivalence(paired_over_seeds(row, np.zeros(count)), 0.3)[0] <= 0.05 for row in draws])
    assert 0.78 <= shown < 0.92  # the smallest number of seeds with at least 80 %


def test_ratio_of_means_by_hand():
    # R = 6/12 = ½, d̄ = 4. e = (x − d/2)/4 for (1,3), (2,4), (3,5): (−.125, 0, .125).
    # V = 3/2 · (2·.125²)/9, SE = .0721688, t_{2, .975} = 4.30265.
    estimate = ratio_of_means([1, 2, 3], [3, 4, 5], [0, 1, 2])
    assert estimate.mean == 0.5
    assert estimate.high - 0.5 == pytest.approx(4.30265 * 0.0721688, rel=1e-4)


def test_ratio_is_unbounded_when_its_denominator_may_be_zero():
    estimate = ratio_of_means([1.0, 2.0, 3.0], [-1.0, 0.5, 1.0], [0, 1, 2])
    assert not estimate.bounded
    assert math.isnan(ratio_of_means([1.0, 2.0], [0.0, 0.0], [0, 1]).mean)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (4, 10), (10, 10), (37, 240)])
def test_wilson_is_statsmodels_wilson(k: int, n: int):
    estimate = wilson(k, n)
    assert (estimate.low, estimate.high) == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-9)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(NumericError, match="impossible"):
        wilson(n + 1, n)


def test_clustered_rate_stays_in_range_and_widens_with_clustering():
    independent = clustered_rate([1, 0, 1, 1, 0, 1, 1, 0], range(8))
    together = clustered_rate([1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 2, 3, 3, 3])
    assert together.high - together.low > independent.high - independent.low
    unanimous = clustered_rate(np.ones(40), np.arange(40) // 5)  # 40 rows, 8 prompts: no better than 8 of 8
    assert unanimous.low == pytest.approx(wilson(8, 8).low) and unanimous.high == 1.0
    with pytest.raises(NumericError, match="0, 1 or NaN"):
        clustered_rate([0.5], [0])


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [3, 10])
@pytest.mark.parametrize(("rate", "correlation"), [(0.05, 0.05), (0.3, 0.05), (0.3, 0.2), (0.5, 0.2)])
def test_the_interval_of_a_clustered_rate_covers(clusters: int, rate: float, correlation: float):
    """20 rows a cluster with beta-binomial rates. With z, 3 clusters cover .89 of rates .3 (ρ .05) and .84 (ρ .2).

    The simulation's standard error is .006 at .95. A rate of .05 often shows no success at all in 3 clusters; the
    interval of "none" is then wider than need be.
    """
    size, runs = 20, 1500
    rng = np.random.default_rng(0)
    spread = (1 - correlation) / correlation
    rate_RG = rng.beta(rate * spread, (1 - rate) * spread, (runs, clusters))
    outcomes_RGN = rng.random((runs, clusters, size)) < rate_RG[:, :, None]
    prompt_N = np.repeat(np.arange(clusters), size)
    estimates = [clustered_rate(outcomes_GN, prompt_N) for outcomes_GN in outcomes_RGN]
    coverage = np.mean([estimate.low <= rate <= estimate.high for estimate in estimates])
    assert 0.93 <= coverage <= (0.98 if rate > 0.05 else 0.995)


def test_a_clustered_rate_is_continuous_in_its_clusters():
    """Clusters that agree exactly are as good as independent rows, and nearly the same as clusters that nearly agree.

    Ten clusters of 100 with 50 successes each have no variance between them: Wilson on 1,000 rows.
    """
    prompt_N = np.repeat(np.arange(10), 100)
    equal_N = np.tile(np.arange(100) % 2, 10)
    estimate, independent = clustered_rate(equal_N, prompt_N), wilson(500, 1000)
    assert (estimate.low, estimate.high) == pytest.approx((independent.low, independent.high))
    nearly_N = equal_N.copy()
    nearly_N[:2] = 1  # one cluster has 51
    nearly = clustered_rate(nearly_N, prompt_N)
    assert nearly.high - nearly.low == pytest.approx(independent.high - independent.low, rel=1e-3)


def test_mcnemar_needs_more_than_two_discordant_tasks():
    # "+16.7 points on 12 tasks" is 2 discordant tasks: p = 2 · ¼ = 0.5.
    assert mcnemar_exact(2, 0) == 0.5
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(9, 2) == pytest.approx(mcnemar([[5, 9], [2, 5]], exact=True).pvalue)


def test_holm_by_hand():
    # Sorted .01, .02, .04 times 3, 2, 1: .03, .04, .04. NaN is not a test and does not count.
    assert holm([0.04, 0.01, math.nan, 0.02]) == pytest.approx([0.04, 0.03, math.nan, 0.04], nan_ok=True)
    assert holm([]) == []


def test_holm_is_statsmodels():
    rng = np.random.default_rng(3)
    for size in (1, 2, 7, 30):
        p_values = np.round(rng.beta(0.5, 3.0, size), 2)  # many small ones, and ties
        assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)


def test_minimum_detectable_effect_has_its_power():
    # For many differences it is (1.960 + 0.842)·sd/√n.
    assert minimum_detectable_effect(2.0, 10_000) == pytest.approx((1.95996 + 0.84162) * 2 / 100, rel=1e-3)
    rng = np.random.default_rng(1)
    effect = minimum_detectable_effect(1.0, 8)
    samples = rng.normal(effect, 1.0, size=(4000, 8))
    found = np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(0.80, abs=0.02)  # 3 standard errors of 4,000 trials
    assert minimum_detectable_effect(1.0, 1) == math.inf


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05 / 6), (5, 0.0025), (87, 0.05)])
def test_few_differences_at_a_strict_level_have_their_detectable_effect(n: int, alpha: float):
    # Solvers that search effects up to a fixed size, as statsmodels' does, stop short of these.
    samples = np.random.default_rng(n).normal(minimum_detectable_effect(1.0, n, alpha=alpha), 1.0, size=(20_000, n))
    found = np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < alpha)
    assert found == pytest.approx(0.80, abs=0.009)  # 3 standard errors of 20,000 trials


def test_every_number_of_differences_has_a_detectable_effect():
    sizes = np.concatenate([np.linspace(2, 5, 31), np.linspace(60, 120, 61) + 0.846, [897.77]])
    effects = [minimum_detectable_effect(1.0, n) for n in sizes]
    assert (np.diff(effects) < 0).all()


def test_ratio_interval_covers_at_its_level():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        d = rng.gamma(4.0, 1.0, 60)
        estimate = ratio_of_means(0.5 * d + rng.normal(0, 1, 60), d, np.arange(60))
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.021)


def test_means_must_match_their_rows():
    check_mean(2.0, [1, 3, None])
    check_mean(0.67, [1, 1, 0], decimals=2)
    check_mean(math.nan, [math.nan])
    for mean, rows in ((0.5, [1, 1, 0]), (0.0, []), (math.nan, [1.0])):
        with pytest.raises(NumericError):
            check_mean(mean, rows)


def test_estimates_survive_json_with_their_missing_bounds():
    for estimate in (clustered_mean([1.0, 2.0], [0, 1]), clustered_mean([1.0], [0])):
        assert Estimate.from_dict(json.loads(json.dumps(estimate.to_dict(), allow_nan=False))) == estimate
    assert math.isnan(Estimate.from_dict(json.loads(json.dumps(clustered_mean([], []).to_dict()))).mean)
    with pytest.raises(NumericError, match="outside its own interval"):
        Estimate(2.0, 0.0, 1.0, 5, 5)


def test_format_is_compact_and_never_hides_a_missing_interval():
    assert format_estimate(Estimate(1.236, 1.156, 1.316, 9, 9)) == "1.24 ±0.08"
    assert format_estimate(wilson(9, 10)) == "0.90 [0.60, 0.98]"
    assert format_estimate(clustered_mean([1.0], [0])) == "1.00 [no interval]"
    assert format_estimate(clustered_mean([], [])) == "unscored"


def test_intervals_that_overlap_may_differ():
    # half-widths .070 and .067 are 1.96 s: s = .03571 and .03418; z = (.438 − .552) / √(.03571² + .03418²) = −2.306
    a, b = (Estimate(mean, mean - half, mean + half, 64, 64) for mean, half in ((0.552, 0.070), (0.438, 0.067)))
    assert b.high > a.low
    z, p_value = unpaired_from_intervals(a, b)
    assert (z, p_value) == (pytest.approx(-2.306, abs=0.001), pytest.approx(0.0211, abs=0.0001))
    bare = Estimate(0.5, -math.inf, math.inf, 0, 0)
    assert all(math.isnan(value) for value in unpaired_from_intervals(a, bare))


def test_unpaired_difference_by_hand():
    # a: 1, 3 → ā = 2, s_a² = 2/2 = 1. b: 0, 0, 3 → b̄ = 1, s_b² = 3/3 = 1. error = √2, t = 1/√2.
    # ν = (1 + 1)² / (1²/1 + 1²/2) = 8/3
    found = unpaired_difference([1, 3], [0, 1], [0, 0, 3], [0, 1, 2])
    assert found.difference.mean == 1.0 and (found.difference.n, found.difference.clusters) == (5, 5)
    assert found.p_value == pytest.approx(2 * stats.t.sf(2**-0.5, 8 / 3))
    assert found.difference.high - 1.0 == pytest.approx(stats.t.ppf(0.975, 8 / 3) * 2**0.5)


def test_unpaired_difference_is_welch_when_clusters_hold_one_row():
    rng = np.random.default_rng(1)
    a_N, b_M = rng.normal(0.4, 1.0, 30), rng.normal(0.0, 3.0, 12)
    found = unpaired_difference(a_N, np.arange(30), b_M, np.arange(12))
    assert found.p_value == pytest.approx(stats.ttest_ind(a_N, b_M, equal_var=False).pvalue, rel=1e-9)
    twice = unpaired_difference(np.repeat(a_N, 2), np.repeat(np.arange(30), 2), b_M, np.arange(12))
    assert twice.p_value == pytest.approx(found.p_value, rel=1e-9)  # copying rows adds no certainty


@pytest.mark.slow
def test_the_detectable_unpaired_difference_is_found_with_its_power():
    rng = np.random.default_rng(2)
    size, groups = 1.0, np.arange(20)
    effect = unpaired_difference(rng.normal(size=20), groups, rng.normal(size=20), groups).minimum_detectable_effect
    assert 0.6 < effect < 1.4  # about 2.9 · √(2/20) = .92 for unit variance
    selected = [(rng.normal(0.909, size, 20), rng.normal(0, size, 20)) for _ in range(800)]
    found = np.mean([unpaired_difference(a, groups, b, groups).p_value <= 0.05 for a, b in selected])
    assert found == pytest.approx(0.8, abs=0.05)  # two groups of 20 find .909 sd with 80 % power (Cohen 1988)


def test_unpaired_sides_that_bound_nothing_say_so():
    alone = unpaired_difference([1.0, 2.0], [0, 0], [0.0, 1.0], [0, 1])
    assert math.isnan(alone.p_value) and math.isinf(alone.minimum_detectable_effect) and not alone.difference.bounded
    assert unpaired_difference([0.5, 0.5], [0, 1], [0.7, 0.7], [0, 1]).p_value <= 0.05  # equal values, known to .001
    assert unpaired_difference([0.0, 0.0], [0, 1], [0.0, 0.0], [0, 1]).p_value == 1.0
