"""The e-process and the lower bound of audited training: the arithmetic, the error rates, and what breaks them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.eprocess import LARGEST, MAX_BET, MEMORY, PRIOR, EProcess, lower_bound

ALPHA = 0.05
ITERATIONS, LABELS, PROMPTS = 59, 8, 16


def test_the_arithmetic_of_two_comparisons():
    """The first bet is 0. After a loss (x = ½): mean ½/17, second moment (¼ + 16/4)/17 = ¼, bet (½/17)/¼ = 2/17."""
    process = EProcess()
    assert process.bet() == 0
    process.update([0.0])
    assert process.e_value == 1
    assert process.bet() == pytest.approx(2 / 17)
    process.update([0.0])  # another loss multiplies by 1 + 2/17 · ½
    assert process.e_value == pytest.approx(18 / 17)
    # Fading sums: the weights of the two losses are e^(−1/80) and 1; all second moments are ¼.
    weight = math.exp(-1 / MEMORY) + 1
    assert process.bet() == pytest.approx(0.5 * weight / (weight + PRIOR) / 0.25)
    bet = process.bet()
    process.update([1.0])  # a win: 1 − bet · ½
    assert process.e_value == pytest.approx(18 / 17 * (1 - bet / 2))
    assert process.largest == pytest.approx(18 / 17) and process.count == 3


def test_a_missing_answer_changes_nothing_and_a_tie_only_the_next_bet():
    process = EProcess()
    process.update([0.0, 0.0, 0.0])
    before = process.state_dict()
    process.update([math.nan])
    assert process.state_dict() == before
    process.update([0.5])
    assert process.log_e == before["log_e"] and process.state_dict()["sums"] != before["sums"]


def test_a_factor_never_reaches_zero():
    """Nothing but losses gives the largest bet; then a win costs the factor 1 − 1.5/2 = ¼."""
    process = EProcess()
    process.update([0.0] * 5000)
    assert process.bet() == MAX_BET and process.e_value == pytest.approx(LARGEST)
    before = process.log_e
    process.update([1.0])
    assert process.log_e - before == pytest.approx(math.log(0.25))
    process.update([1.0] * 5000)
    assert process.bet() == 0 and math.isfinite(process.log_e)


@pytest.mark.parametrize("score", [-0.1, 1.5])
def test_a_score_outside_its_range_is_refused(score):
    with pytest.raises(ValueError, match=f"a comparison has the score {score}; it must be from 0"):
        EProcess().update([score])


def test_a_restored_process_continues_exactly():
    scores = np.random.default_rng(0).choice([0, 0.5, 1], 200).tolist()
    whole, first, second = EProcess(), EProcess(), EProcess()
    whole.update(scores)
    first.update(scores[:77])
    second.load_state_dict(first.state_dict())
    second.update(scores[77:])
    assert second.state_dict() == whole.state_dict()


# --- error rates on replays of start responses -------------------------------------------------------------------


def gold_of_responses(rng: np.random.Generator, prompt_TN: np.ndarray) -> FloatArray:
    """Gold of a new start response to each prompt, rounded so that ties occur; prompts differ in difficulty."""
    difficulty_TN = np.linspace(-2, 2, PROMPTS)[prompt_TN]
    return np.round(difficulty_TN + rng.standard_normal(prompt_TN.shape), 1)


def replay(rng: np.random.Generator, *, shift_T=0.0, reuse: bool = False, permute: bool = False) -> int | None:
    """Return the number of labels at the alarm, or None, for a policy whose gold is `shift_T` above the start's.

    `reuse` compares with one start response per prompt, sampled once. `permute` swaps the sides at random.
    """
    prompt_TN = rng.integers(PROMPTS, size=(ITERATIONS, LABELS))
    policy_TN = gold_of_responses(rng, prompt_TN) + np.broadcast_to(shift_T, ITERATIONS)[:, None]
    bank = gold_of_responses(rng, np.arange(PROMPTS))
    start_TN = bank[prompt_TN] if reuse else gold_of_responses(rng, prompt_TN)
    score_TN = np.sign(policy_TN - start_TN) / 2 + 0.5
    if permute:
        score_TN = np.where(rng.random(score_TN.shape) < 0.5, score_TN, 1 - score_TN)
    process = EProcess()
    for score_N in score_TN:
        process.update(score_N.tolist())
        if process.largest >= 1 / ALPHA:
            return process.count
    return None


def alarms(runs: int, seed: int, **options) -> list[int]:
    """Labels at the alarm of the runs that had one."""
    rng = np.random.default_rng(seed)
    found = [replay(rng, **options) for _ in range(runs)]
    return [labels for labels in found if labels is not None]


def test_false_alarms_over_a_thousand_replays_of_start_responses():
    assert len(alarms(1000, seed=0)) <= ALPHA * 1000


def test_reused_start_responses_break_the_guarantee():
    """Why `Auditor` samples new ones: with a bank of one response per prompt, errors are those of the bank."""
    assert len(alarms(200, seed=1, reuse=True)) > 2 * ALPHA * 200


def test_permuted_sides_of_a_bad_policy_raise_no_alarm():
    """The null check of a detector: without the information who won, a fall by 2 sd is not detectable."""
    assert len(alarms(400, seed=2, permute=True, shift_T=-2.0)) <= ALPHA * 400


def test_power_on_a_policy_that_improves_first():
    """Up by half an sd for 20 iterations, then down to −1: early wins must not hide the later fall."""
    later_T = np.clip(0.5 - np.arange(ITERATIONS - 20) / 10, -1, None)
    found = alarms(200, seed=4, shift_T=np.concatenate([np.full(20, 0.5), later_T]))
    assert len(found) >= 0.95 * 200 and min(found) > 20 * LABELS


# --- the lower bound ---------------------------------------------------------------------------------------------


def test_the_arithmetic_of_the_lower_bound():
    """Mean ¾ of 8 comparisons, 2 looks: ¾ − √(log(2/0.05)/16) = 0.75 − √(3.689/16) = 0.75 − 0.4802."""
    scores = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert lower_bound(scores, alpha=0.05, looks=2) == pytest.approx(0.2698, abs=1e-4)
    assert lower_bound([], alpha=0.05, looks=2) == 0 == lower_bound([0.0], alpha=0.05, looks=2)


def test_the_lower_bounds_of_a_run_hold_together():
    """A policy that declines: the bound on the window's mean probability fails in at most α of the runs."""
    rng = np.random.default_rng(6)
    probability_TN = np.repeat(np.linspace(0.8, 0.2, ITERATIONS)[:, None], LABELS, axis=1)
    window, wrong = 16, 0
    for _ in range(500):
        score_TN = (rng.random(probability_TN.shape) < probability_TN).astype(float)
        for end in range(1, ITERATIONS + 1):
            recent = slice(max(0, end - window), end)
            bound = lower_bound(score_TN[recent].ravel().tolist(), alpha=ALPHA, looks=ITERATIONS)
            if bound > probability_TN[recent].mean():
                wrong += 1
                break
    assert wrong <= ALPHA * 500
