"""Calibration of reward margins: hand-worked bins, planted truth, and no alarm at a perfect model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rlhf_lab.statistics import calibration
from rlhf_lab.statistics.calibration import (
    brier,
    expected_calibration_error,
    fit_temperature,
    overconfidence,
    perfect_ece,
    reliability,
    rescaled,
)

LN3 = math.log(3.0)  # σ(ln 3) = 3/4
LN9 = math.log(9.0)  # σ(ln 9) = 9/10


def margins(pairs: int, seed: int, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logit margins that are right with probability σ(|Δ|/temperature), two pairs a prompt."""
    rng = np.random.default_rng(seed)
    true_N = np.abs(rng.normal(0, 1.5, pairs))
    right_N = rng.random(pairs) < 1 / (1 + np.exp(-true_N))
    return temperature * np.where(right_N, true_N, -true_N), np.repeat(np.arange(pairs // 2), 2)


def test_ece_brier_and_overconfidence_by_hand(monkeypatch):
    """Four pairs at confidence .75, of which 2 right; four at .9, of which 4 right.

    ECE = 4/8·|2/4 − .75| + 4/8·|4/4 − .9| = .125 + .05 = .175
    Brier = (2·.0625 + 2·.5625 + 4·.01)/8 = 1.29/8;   overconfidence = (.75·4 + .9·4)/8 − 6/8 = .825 − .75
    """
    monkeypatch.setattr(calibration, "PER_BIN", 4)
    margin = np.array([LN3, LN3, -LN3, -LN3, LN9, LN9, LN9, LN9])
    prompts = np.arange(8)
    assert expected_calibration_error(margin, prompts, 2).mean == pytest.approx(0.175)
    assert brier(margin, prompts).mean == pytest.approx(1.29 / 8)
    assert overconfidence(margin, prompts).mean == pytest.approx(0.075)
    low, high = reliability(margin, prompts, 2)
    assert (low.confidence, low.accuracy.mean) == (pytest.approx(0.75), 0.5)
    assert (high.confidence, high.accuracy.mean) == (pytest.approx(0.9), 1.0)


def test_a_draw_of_prompts_is_divided_by_the_pairs_that_it_has():
    """Confidence ¾ in all pairs: prompt a has one pair, wrong, gap −¾; prompt b has three, right, gaps ¼. ECE 0.

    A draw is (a, a) with |−1.5|/2 = ¾, (b, b) with 1.5/6 = ¼, or twice as often (a, b) with 0: mean ¼. Quantiles of the
    draws less their mean are −¼ and ½.
    """
    margins = [-math.log(3), *[math.log(3)] * 3]
    ece = expected_calibration_error(margins, ["a", "b", "b", "b"])
    assert (ece.mean, ece.low) == (pytest.approx(0), 0)
    assert ece.high == pytest.approx(0.5, abs=0.03)  # of 1,000 draws a quarter is (a, a), ±.014


@given(order=st.permutations(range(64)), levels=st.integers(1, 5), jitter=st.sampled_from([0.0, 1e-9]))
@settings(max_examples=40, deadline=None)
def test_the_order_of_tied_pairs_does_not_matter(order, levels, jitter):
    """Rewards of few values, as rubrics give: half of the pairs of each confidence are right, right ones first.

    Cut through a tie, the first bins would hold right pairs only and the last ones wrong pairs only. Rounding in the
    scores, which depends on the batch, does not break a tie.
    """
    size_N = np.arange(64) % levels + 1.0
    margin = np.where(np.arange(64) < 32, size_N, -size_N)
    prompts = np.arange(64) // 2
    noise = jitter * np.random.default_rng(0).random(64)
    shuffled, shuffled_prompts = (margin + noise)[order], prompts[order]
    for measure in (expected_calibration_error, perfect_ece):
        simple, moved = measure(margin, prompts), measure(shuffled, shuffled_prompts)
        assert (moved.mean, moved.low, moved.high) == pytest.approx((simple.mean, simple.low, simple.high), abs=1e-6)
    bins = [(one.confidence, one.accuracy.mean, one.accuracy.n) for one in reliability(margin, prompts)]
    again = [(one.confidence, one.accuracy.mean, one.accuracy.n) for one in reliability(shuffled, shuffled_prompts)]
    assert np.allclose(bins, again)


def test_a_bin_keeps_ties_together_and_has_enough_pairs():
    """90 pairs tie at confidence .75 and 6 at .9: the six would be a bin of their own, smaller than PER_BIN."""
    tied = reliability(np.repeat([LN3, LN9], [90, 6]), np.arange(96))
    assert [one.accuracy.n for one in tied] == [96]
    enough = reliability(np.repeat([LN3, LN9], [88, 8]), np.arange(96))
    assert [one.accuracy.n for one in enough] == [88, 8]
    distinct = reliability(np.linspace(1, 3, 84), np.arange(84))
    assert sorted(one.accuracy.n for one in distinct) == [8] * 6 + [9] * 4


def test_a_tie_is_a_coin_at_confidence_one_half():
    """Every pair counts as half right at confidence one half, and no draw of perfect calibration differs from that."""
    assert overconfidence([0.0, 0.0], [0, 1]).mean == brier([0.0, 0.0], [0, 1]).mean == 0.0
    assert perfect_ece(np.zeros(40), np.arange(40)).high == 0.0


def test_unscored_pairs_are_left_out_and_counted():
    margin, prompts = margins(400, 4)
    gaps = np.where(np.arange(400) % 4 == 0, np.nan, margin)
    kept = ~np.isnan(gaps)
    for measure in (expected_calibration_error, brier, overconfidence, fit_temperature):
        found, alone = measure(gaps, prompts), measure(margin[kept], prompts[kept])
        assert (found.mean, found.n, found.unscored) == (pytest.approx(alone.mean), 300, 100)
    assert perfect_ece(gaps, prompts).unscored == 100
    assert expected_calibration_error([np.nan], [0]).n == 0
    assert math.isnan(fit_temperature([np.nan], [0]).mean)


def alike(prompts: int, pairs: int, seed: int, correlation: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """Margins right with probability σ(|Δ|); pairs of a prompt are similar in size and outcome (Gaussian copula)."""
    rng = np.random.default_rng(seed)
    shared_P, own_PN = rng.standard_normal((prompts, 1)), rng.standard_normal((prompts, pairs))
    latent_PN = math.sqrt(correlation) * shared_P + math.sqrt(1 - correlation) * own_PN
    size_PN = np.abs(rng.normal(0, 1.5, (prompts, 1)) + rng.normal(0, 0.3, (prompts, pairs)))
    right_PN = stats.norm.cdf(latent_PN) < 1 / (1 + np.exp(-size_PN))
    return np.where(right_PN, size_PN, -size_PN).ravel(), np.repeat(np.arange(prompts), pairs)


def test_the_range_of_perfect_calibration_knows_that_pairs_of_a_prompt_are_alike():
    """Six pairs a prompt: a range for independent pairs covered 68 of 100 samples of right confidences."""
    inside, excess = 0, []
    for seed in range(100):
        margin, prompts = alike(60, 6, seed)
        ece, perfect = expected_calibration_error(margin, prompts), perfect_ece(margin, prompts)
        inside += perfect.low <= ece.mean <= perfect.high
        excess.append(ece.mean - perfect.mean)
        assert perfect.clusters == 60
    assert 86 <= inside <= 100
    assert abs(np.mean(excess)) < 4 * np.std(excess) / 10


def test_perfect_calibration_with_one_pair_a_prompt_is_that_of_independent_pairs():
    margin, prompts = margins(400, 5)
    separate, together = perfect_ece(margin, np.arange(400)), perfect_ece(margin, prompts)
    assert together.mean == pytest.approx(separate.mean, rel=0.1)
    assert not perfect_ece(margin, np.zeros(400)).bounded  # one prompt gives no estimate of the similarity of its pairs


@pytest.mark.parametrize("planted", [3.0, 0.4])
def test_a_wrong_temperature_is_found_and_repaired(planted):
    margin, prompts = margins(4000, 7, planted)
    ece, perfect = expected_calibration_error(margin, prompts), perfect_ece(margin, prompts)
    assert ece.low > perfect.high
    gap = overconfidence(margin, prompts)
    assert gap.low > 0 if planted > 1 else gap.high < 0
    found = fit_temperature(margin, prompts)
    assert found.low < planted < found.high
    assert found.mean == pytest.approx(planted, rel=0.1)
    repaired = rescaled(margin, prompts)
    fixed = perfect_ece(repaired, prompts)
    assert fixed.low <= expected_calibration_error(repaired, prompts).mean <= fixed.high
    assert brier(repaired, prompts).mean < brier(margin, prompts).mean
    assert np.array_equal(np.sign(repaired), np.sign(margin)), "scaling never changes which side wins"


def test_the_temperature_is_fitted_on_other_prompts():
    """Half of the prompts deserve T = 1 and half T = 3, by the halves that `rescaled` deals: each gets the other's."""
    margin, prompts = margins(4000, 8)
    names = np.unique(prompts)
    half = (np.random.default_rng(0).permutation(names.size) % 2)[prompts]
    mixed = np.where(half == 1, 3 * margin, margin)
    ratio = mixed / rescaled(mixed, prompts)
    assert ratio[half == 0] == pytest.approx(np.full((half == 0).sum(), 3.0), rel=0.15)
    assert ratio[half == 1] == pytest.approx(np.full((half == 1).sum(), 1.0), rel=0.15)


def test_the_interval_of_a_temperature_counts_prompts():
    """Three copies of every pair are no new evidence: the interval stays; as pairs of their own it would be 1/√3."""
    margin, prompts = margins(200, 9, 2.0)
    once, thrice = fit_temperature(margin, prompts), fit_temperature(np.repeat(margin, 3), np.repeat(prompts, 3))
    assert (thrice.mean, thrice.low, thrice.high) == pytest.approx((once.mean, once.low, once.high), rel=1e-6)
    assert (thrice.n, thrice.clusters) == (600, 100)


def test_the_interval_of_a_temperature_covers_with_pairs_that_are_alike():
    """Six pairs a prompt, similar outcomes: 95 % intervals cover T = 1 in 97 of 100 samples, unclustered ones in 78."""
    covered = 0
    for seed in range(100):
        temperature = fit_temperature(*alike(60, 6, seed))
        covered += temperature.low <= 1 <= temperature.high
    assert 86 <= covered <= 100


def test_a_temperature_by_hand_and_at_the_edge():
    """Three of four pairs right at |Δ| = 2: σ(2/T) = 3/4, so T = 2/ln 3. At the edge there is no interval."""
    assert fit_temperature([2.0, 2.0, 2.0, -2.0], range(4)).mean == pytest.approx(2 / LN3)
    sure, hopeless = fit_temperature([1.0, 2.0, 3.0], [0, 1, 2]), fit_temperature([-1.0, -2.0, 1.0], [0, 1, 2])
    assert (sure.mean, sure.bounded) == (calibration.MIN_TEMPERATURE, False)
    assert (hopeless.mean, hopeless.bounded) == (calibration.MAX_TEMPERATURE, False)
