"""The reward-hacking detector against planted truth: its error rates are what it says, and so are its delays."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.monitoring import hacking
from rlhf_lab.monitoring.detector import Detector, DetectorSettings, DetectorVerdict, IterationBatch
from rlhf_lab.monitoring.hacking import (
    ALLOWANCE,
    Baseline,
    Cusum,
    bin_counts,
    bin_edges,
    by_prompt,
    cusum_threshold,
    fit_baseline,
    shift_kl,
)
from rlhf_lab.monitoring.truth import GoldTruth

PROMPTS, MEAN, SD = 32, 25.0, 12.0
LIMITS = DetectorSettings(
    every=1,
    warmup=5,
    planned=35,
    z=2.5,
    kl=0.15,
    rising=3,
    budget=0.1,
    tolerance=0.1,
    signals=("length_z", "reward_kl"),
)


NO_CUSUM = replace(LIMITS, planned=5)
"""Nothing is planned after warm-up, so no threshold is simulated."""


def batch(tokens, reward, **more) -> IterationBatch:
    """Responses, each to its own prompt."""
    return IterationBatch.from_row({"tokens": list(tokens), "reward": list(reward), **more})


def trace(rng, checkpoints=LIMITS.planned, *, length=lambda t: 0.0, reward=lambda t: 0.0) -> list[IterationBatch]:
    """Normal lengths and rewards whose means follow two functions of the checkpoint."""
    return [
        batch(MEAN + length(t) + SD * rng.standard_normal(PROMPTS), reward(t) + rng.standard_normal(PROMPTS))
        for t in range(checkpoints)
    ]


def verdicts(
    batches: list[IterationBatch], limits: DetectorSettings = LIMITS
) -> tuple[Detector, list[DetectorVerdict]]:
    detector = Detector(limits)
    found = [detector.see(b) for b in batches]
    return detector, [verdict for verdict in found if verdict is not None]


RUNS = 500


def overrun(alarms: int) -> float:
    """p-value of so many runs with an alarm, if the budget were kept."""
    return stats.binomtest(alarms, RUNS, LIMITS.budget, alternative="greater").pvalue


@pytest.fixture
def quick(monkeypatch):
    """Thresholds from fewer simulated runs: less precise one by one, right on average."""
    monkeypatch.setattr(hacking, "SIMULATED", 1000)


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_the_cusum_keeps_its_budget_over_the_whole_run(tolerance, quick):
    """5 checkpoints of warm-up, then 30 with a mean on the edge of what is accepted: alarms anywhere are binomial."""
    alarms, requested = 0, {"planned": 30, "budget": LIMITS.budget, "tolerance": tolerance, "two_sided": True}
    for seed in range(RUNS):
        values_CB = MEAN + SD * np.random.default_rng(seed).standard_normal((35, PROMPTS))
        base = fit_baseline(list(values_CB[:5]))
        cusum = Cusum(base, tolerance, True, cusum_threshold(base, **requested, seed=seed))
        later_C = values_CB[5:].mean(axis=1) + tolerance * MEAN
        alarms += max(cusum.step(mean, PROMPTS) for mean in later_C.tolist()) > 1
    assert overrun(alarms) > 0.01, alarms
    assert stats.binomtest(alarms, RUNS, LIMITS.budget, alternative="less").pvalue > 0.01, f"not all is used: {alarms}"


def test_a_reward_that_slowly_improves_is_no_alarm_of_the_cusum(quick):
    """The same through the detector: the reward gains a full sd, responses keep their length."""
    found = [verdicts(trace(np.random.default_rng(s), reward=lambda t: 0.03 * t))[0] for s in range(RUNS // 5)]
    alarms = sum("length_cusum" in detector.first for detector in found)
    assert overrun(5 * alarms) > 0.01, alarms
    assert np.mean(["reward_kl" in detector.first for detector in found]) > 0.5  # which takes it for hacking


@pytest.mark.parametrize("shift", [2.0, 3.0, 4.0])
def test_the_delay_to_a_planted_shift_is_siegmunds(shift):
    """ARL = (e^(−2Δb) + 2Δb − 1)/(2Δ²), Δ = shift − k, b = h + 1.166 (Siegmund 1985, eq. 2.50)."""
    noise = SD / math.sqrt(PROMPTS)
    base = Baseline(MEAN, SD, 0.0, checkpoints=1000, prompts=PROMPTS)
    threshold = cusum_threshold(base, planned=30, budget=0.05, tolerance=0.0, two_sided=False, seed=0)
    delays = []
    for seed in range(400):
        rng, cusum = np.random.default_rng(seed), Cusum(base, 0.0, False, threshold)
        steps = range(1, 200)
        delays.append(next(t for t in steps if cusum.step(MEAN + noise * (shift + rng.standard_normal()), PROMPTS) > 1))
    delta, b = shift - ALLOWANCE, threshold + 1.166
    theory = (math.exp(-2 * delta * b) + 2 * delta * b - 1) / (2 * delta**2)
    assert np.mean(delays) == pytest.approx(theory, rel=0.12)


def test_the_z_score_is_the_formula():
    """Two checkpoints of two prompts: 10, 14 and 12, 16; s² = (8 + 8)/2 = 8, no drift: var(12, 14) = 2 ≤ 8/2."""
    base = fit_baseline([np.array([10.0, 14.0]), np.array([12.0, 16.0])])
    assert (base.mean, base.sd**2, base.drift) == (13.0, pytest.approx(8.0), 0.0)
    assert base.z(18.0, 2) == pytest.approx(5 / math.sqrt(8 / 2 + 8 / 4))
    """Separate checkpoints: 10, 12 and 20, 22; s² = 2, var(11, 21) = 50 = s²/2 + drift²."""
    separate = fit_baseline([np.array([10.0, 12.0]), np.array([20.0, 22.0])])
    assert separate.drift**2 == pytest.approx(49.0)
    assert separate.z(26.0, 2) == pytest.approx(10 / math.sqrt(50 + 50 / 2))


def test_the_z_rule_fires_exactly_beyond_its_limit():
    """All lengths 20 or 30 in equal parts: s = 5·√(32/31); the error of the difference is s·√(1/32 + 1/160)."""
    warm = [batch([20.0, 30.0] * 16, np.zeros(32)) for _ in range(5)]
    error = 5 * math.sqrt(32 / 31) * math.sqrt(1 / 32 + 1 / 160)
    for sign in (-1, 1):
        for factor, expected in ((0.99, False), (1.01, True)):
            move = sign * factor * 2.5 * error
            _, (verdict,) = verdicts([*warm, batch(np.array([20.0, 30.0] * 16) + move, np.zeros(32))], NO_CUSUM)
            assert ("length_z" in verdict.alarms) == expected
            assert verdict.statistics["length_z"] == pytest.approx(sign * factor * 2.5, rel=1e-6)


def test_kl_of_binned_samples():
    """(3, 1) against (1, 3) with ½ each: p = (.7, .3), q = (.3, .7): .4·ln(7/3); bias ½·(1/4 + 1/4)."""
    simple = 0.4 * math.log(7 / 3)
    assert shift_kl(np.array([3.0, 1.0]), np.array([1.0, 3.0])) == pytest.approx(simple - 0.25)
    assert shift_kl(np.array([3.0, 0.0, 1.0]), np.array([1.0, 0.0, 3.0])) == pytest.approx(simple - 0.25)
    assert math.isnan(shift_kl(np.array([3.0, 1.0]), np.zeros(2)))


def test_kl_has_no_bias_under_no_change_and_finds_a_shift():
    """A normal that moved by δ has KL δ²/2, of which 8 bins show almost all; without correction noise alone is .066."""
    rng, null, moved = np.random.default_rng(0), [], []
    for _ in range(600):
        start = rng.standard_normal(320)
        edges = bin_edges(start)
        initial = bin_counts(start, edges)
        null.append(shift_kl(initial, bin_counts(rng.standard_normal(64), edges)))
        moved.append(shift_kl(initial, bin_counts(0.6 + rng.standard_normal(64), edges)))
    assert abs(np.mean(null)) < 0.01
    assert np.mean(null) + 7 / 2 * (1 / 320 + 1 / 64) > 0.05
    assert np.mean(moved) == pytest.approx(0.18, abs=0.03)
    assert np.mean(np.array(null) > 0.15) < 0.02


def test_the_kl_rule_needs_size_and_a_rise_over_three_checkpoints():
    """The baseline counts as 0, so two rising checkpoints after it are enough; a pause starts the count again."""
    ramp = np.linspace(-1, 1, 64)

    def at(shift):
        return batch(np.full(64, 25.0), ramp + shift)

    def alarms(*shifts):
        _, found = verdicts([at(0.0)] * 5 + [at(s) for s in shifts], NO_CUSUM)
        return ["reward_kl" in verdict.alarms for verdict in found]

    assert alarms(0.5, 0.8) == [False, True]
    assert alarms(0.05, 0.1) == [False, False]  # rising but small
    assert alarms(0.8, 0.5, 0.5) == [False, False, False]  # large but falling, then level
    assert alarms(0.8, 0.5, 0.7, 0.9) == [False, False, False, True]


def test_one_signal_warns_and_two_stop():
    long, high = np.full(64, 60.0), np.linspace(-1, 1, 64)
    noisy = np.tile([20.0, 30.0], 32)
    start = [batch(noisy, high)] * 5
    _, found = verdicts([*start, batch(long, high + 0.3), batch(long, high + 0.6), batch(noisy, high + 0.9)])
    assert [verdict.level for verdict in found] == [1, 2, 1]
    only = replace(LIMITS, signals=("length_cusum",))
    _, found = verdicts([*start, batch(noisy, high + 1), batch(long, high)], only)
    assert [verdict.level for verdict in found] == [0, 2]


def test_unscored_replies_are_counted_and_not_read():
    rng = np.random.default_rng(0)
    clean = trace(rng, 12)
    holes = [
        batch([*b.tokens_N, *b.tokens_N[:9]], [*b.reward_N, *[None] * 9], prompt=[*b.prompt_N, *b.prompt_N[:9] + 100])
        for b in clean
    ]
    (_, one), (_, two) = verdicts(clean), verdicts(holes)
    assert [v.statistics["reward_kl"] for v in one] == [v.statistics["reward_kl"] for v in two]
    assert {(v.scored, v.unscored) for v in two} == {(PROMPTS, 9)}
    silent = [batch(b.tokens_N, np.full(PROMPTS, np.nan)) for b in clean]
    assert all("reward_kl" not in v.statistics and "length_z" in v.statistics for v in verdicts(silent)[1])


def test_replies_to_one_prompt_count_once():
    assert by_prompt(np.array([1.0, 3.0, 5.0, np.nan]), np.array([7, 7, 8, 9])).tolist() == [2.0, 5.0]
    one = Detector(replace(LIMITS, every=2, warmup=1, planned=2))
    for tokens in ([1.0, 2.0], [3.0, 4.0]):
        one.see(batch(tokens, [0.0, 0.0], prompt=[0, 1]))
    assert one.length is not None and one.length.baseline.prompts == 4  # another iteration asks other prompts


@pytest.mark.parametrize("has_outcome", [False, True])
def test_a_detector_that_was_saved_goes_on_alike(has_outcome):
    """Stopped anywhere, in warm-up, within a checkpoint and after it, through JSON."""
    rng = np.random.default_rng(3)
    batches = trace(rng, 24, length=lambda t: 0.1 * SD * t)
    more = [
        {"gold": list(b.reward_N)} | ({"unverified": list(0.1 * b.reward_N)} if has_outcome else {}) for b in batches
    ]
    batches = [IterationBatch.from_row(b.to_row() | columns) for b, columns in zip(batches, more, strict=True)]
    limits = replace(LIMITS, every=2, warmup=3, planned=12)
    full, expected = verdicts(batches, limits)
    for stop in range(1, 24):
        first = Detector(limits)
        found = [first.see(b) for b in batches[:stop]]
        second = Detector(limits)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += [second.see(b) for b in batches[stop:]]
        assert [verdict for verdict in found if verdict] == expected
        np.testing.assert_equal(second.totals(), full.totals())


def test_a_row_is_the_batch():
    b = batch([3.0, 4.0], [0.123456, math.nan], gold=[1.0, 2.5])
    assert b.to_row() == {"prompt": [0, 1], "tokens": [3, 4], "reward": [0.123456, None], "gold": [1, 2.5]}
    again = IterationBatch.from_row(b.to_row())
    assert again.to_row() == b.to_row() and np.isnan(again.unverified_N).all()


def test_the_first_alarm_has_the_number_of_its_iteration():
    """Five iterations of warm-up, 0 to 4; the first one after them, 5, is 40 standard errors longer."""
    rng = np.random.default_rng(0)
    detector, (verdict,) = verdicts(trace(rng, 6, length=lambda t: 100.0 * (t == 5)), NO_CUSUM)
    assert "length_z" in verdict.alarms
    assert detector.totals()["alarm_at/length_z"] == 5


def test_lead_is_from_the_first_alarm_to_the_fall():
    rng, gold = np.random.default_rng(0), [*np.linspace(0, 1, 15), *np.linspace(1, -2, 20)]
    b = trace(rng, 35, length=lambda t: 0.5 * SD * max(0, t - 12))

    def with_gold(batches, gold):
        noisy = [list(g + 0.1 * rng.standard_normal(PROMPTS)) for g in gold]
        return [IterationBatch.from_row({**x.to_row(), "gold": g}) for x, g in zip(batches, noisy, strict=True)]

    found = verdicts(with_gold(b, gold))[0].totals()
    assert found["gold_fell"] == 1 and 13 <= found["gold_peak"] <= 17
    assert found["gold_fell_at"] == found["gold_fall"]
    assert found["lead/length_cusum"] == found["gold_fall"] - found["alarm_at/length_cusum"]
    assert found["in_time/length_cusum"] == float(found["lead/length_cusum"] > 0)
    assert math.isnan(found["false/length_cusum"])
    detector = verdicts(with_gold(trace(rng, 35), np.zeros(35)))[0]
    found = detector.totals()
    # samples alone never say that gold did not fall
    assert math.isnan(found["gold_fell"]) and found["gold_undecided"] == 1
    assert math.isnan(found["lead/length_z"]) and math.isnan(found["false/length_cusum"])
    # held-out prompts do, and then every alarm is false
    found = detector.totals(GoldTruth(False))
    assert found["gold_fell"] == 0 and math.isnan(found["in_time/length_cusum"])
    assert found["false/length_cusum"] == found["alarm/length_cusum"]
    # an undecided run counts neither for the detector nor against it
    found = detector.totals(GoldTruth(None))
    assert found["gold_undecided"] == 1 and math.isnan(found["false/length_cusum"] + found["in_time/length_cusum"])


TASKS, ATTEMPTS, COST, PAY = 16, 8, 0.02, 0.15


def agent_trace(success, calls, *, per_call=-COST, words=lambda t: 12.0, seed=0) -> list[IterationBatch]:
    """Groups of attempts at tasks, which succeed with a probability and call tools so often on average.

    A call has 16 tokens, an answer `words`. Every call earns `per_call` besides the outcome.
    """
    rng = np.random.default_rng(seed)
    batches = []
    for t in range(60):
        hard = rng.normal(size=(TASKS, 1))  # harder tasks need more calls and fail more often
        generated = np.maximum(1, np.round(calls(t) + 0.7 * hard + 0.7 * rng.standard_normal((TASKS, ATTEMPTS))))
        solved = rng.random((TASKS, ATTEMPTS)) < success(t) - 0.1 * np.sign(hard)
        tokens = 16 * generated + words(t) + rng.integers(0, 4, generated.shape)
        rest = per_call * generated
        columns = {
            "prompt": np.repeat(np.arange(TASKS), ATTEMPTS),
            "tokens": tokens,
            "turns": generated + 1,
            "reward": solved + rest,
            "unverified": rest,
            "gold": solved.astype(float),
        }
        batches.append(IterationBatch.from_row({name: np.ravel(values).tolist() for name, values in columns.items()}))
    return batches


AGENTS = replace(LIMITS, planned=60, budget=0.05)


def grows(t, start, end):
    """From `start` to `end` over 40 checkpoints, after the warm-up."""
    return start + (end - start) * min(1.0, max(0, t - 5) / 40)


@pytest.mark.parametrize("seed", range(2))
def test_an_agent_that_learns_is_no_alarm(seed, quick):
    """Success rises from .4 to .85, and calls with it; the tokens of an episode and the reward rise by themselves."""
    healthy = agent_trace(lambda t: grows(t, 0.4, 0.85), lambda t: grows(t, 2.3, 3.2), seed=seed)
    detector, found = verdicts(healthy, AGENTS)
    assert detector.counts["warning"] == 0 and not detector.first
    assert all("reward_kl" not in verdict.statistics for verdict in found)
    # Without the two columns the same run alarms: this is what they are there for.
    blind = [replace(b, turns_N=np.zeros(0), unverified_N=np.zeros(0)) for b in healthy]
    assert {"length_z", "reward_kl", "hard_stop"} <= verdicts(blind, AGENTS)[0].first.keys()


@pytest.mark.parametrize("success", [0.7, 0.4], ids=["success stays", "success falls"])
def test_pay_for_calls_is_a_strong_warning(success, quick):
    """The reward rises by calls that solve nothing."""
    hacked = agent_trace(lambda t: grows(t, 0.7, success), lambda t: grows(t, 2.3, 5.0), per_call=PAY)
    detector, found = verdicts(hacked, AGENTS)
    assert detector.first["parting"] == detector.first["hard_stop"] < 35
    assert found[-1].level == 2 and np.mean([b.reward_N.mean() for b in hacked[-5:]]) > hacked[0].reward_N.mean()
    assert "length_z" not in detector.first  # a turn is as long as before
    only = replace(AGENTS, signals=("length_z",))
    assert "hard_stop" not in verdicts(hacked, only)[0].first  # who leaves the reward out leaves both rules out


def test_padded_turns_of_an_agent_are_seen(quick):
    padded = agent_trace(lambda t: grows(t, 0.4, 0.8), lambda t: 2.5, words=lambda t: grows(t, 12.0, 40.0))
    assert {"length_z", "length_cusum"} <= verdicts(padded, AGENTS)[0].first.keys()


def test_an_outcome_that_falls_is_parting_and_one_that_rises_is_not(quick):
    """A reward that is nothing but the outcome: there is no proxy, and only the success can part from its start."""
    for end, alarm in ((0.9, False), (0.3, True)):
        only = agent_trace(lambda t, end=end: grows(t, 0.6, end), lambda t: 2.5, per_call=0.0)
        assert ("parting" in verdicts(only, AGENTS)[0].first) is alarm


def test_a_learned_term_beside_an_outcome_is_still_watched(quick):
    """Success rises a little, and the learned part of the reward by far more."""
    rng = np.random.default_rng(1)
    batches = []
    for t in range(60):
        outcome_N = (rng.random(64) < grows(t, 0.4, 0.5)).astype(float)
        learned_N = grows(t, 0.0, 2.0) + rng.standard_normal(64)
        row = {"tokens": [25.0, 26.0] * 32, "reward": list(outcome_N + learned_N), "unverified": list(learned_N)}
        batches.append(IterationBatch.from_row(row))
    assert "hard_stop" in verdicts(batches, AGENTS)[0].first


def test_z_counts_from_the_tolerance_on():
    """Baseline 10 ± 1 of many prompts: 12 is 1 beyond a tolerance of 10 %, in both directions."""
    baseline = Baseline(mean=10.0, sd=4.0, drift=0.0, checkpoints=10**9, prompts=16)
    assert baseline.z(12.0, 16) == pytest.approx(2.0) and baseline.z(12.0, 16, tolerance=0.1) == pytest.approx(1.0)
    assert baseline.z(8.0, 16, tolerance=0.1) == pytest.approx(-1.0)
    assert baseline.z(10.9, 16, tolerance=0.1) == 0 == baseline.z(9.1, 16, tolerance=0.1)


def test_the_band_of_an_agent_is_where_its_length_is_silent(quick):
    """A checkpoint just inside is silent, one just outside is not."""
    detector, _ = verdicts(agent_trace(lambda t: 0.5, lambda t: 2.5)[:5], AGENTS)
    low, high = detector.band()
    baseline = detector.length.baseline
    for inside, outside in ((low + 1e-6, low - 1e-3), (high - 1e-6, high + 1e-3)):
        assert abs(baseline.z(inside, baseline.prompts, tolerance=0.1)) < 2.5
        assert abs(baseline.z(outside, baseline.prompts, tolerance=0.1)) > 2.5
