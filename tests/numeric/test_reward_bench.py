"""Scoring rules of the benchmarks, case by case, with the arithmetic on the page."""

from __future__ import annotations

import math

import pytest

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.reward_bench import (
    SECTIONS,
    TiesPrompt,
    best_of_credit,
    first_error,
    pair_wins,
    processbench_f1,
    rewardmath_group,
    ties_score,
)


def test_reward_bench_counts_a_tie_as_lost():
    assert pair_wins([1.0, 2.0, 3.0], [0.5, 2.0, 4.0]).tolist() == [1.0, 0.0, 0.0]


def test_reward_bench_has_its_23_subsets_and_math_weighs_as_much_as_code():
    assert {section: len(subsets) for section, subsets in SECTIONS.items()} == {
        "Chat": 5,
        "Chat Hard": 6,
        "Safety": 5,
        "Reasoning": 7,
    }
    totals = {section: sum(subsets.values()) for section, subsets in SECTIONS.items()}
    assert totals == {"Chat": 358, "Chat Hard": 456, "Safety": 740, "Reasoning": 1968}
    assert SECTIONS["Reasoning"]["math-prm"] == 6 * 164


@pytest.mark.parametrize(
    ("scores", "credit"),
    [
        ([2.0, 1.0, 0.0, -1.0], 1.0),
        ([1.0, 2.0, 0.0, -1.0], 0.0),
        ([2.0, 2.0, 0.0, -1.0], 0.5),
        ([2.0, 2.0, 2.0, 2.0], 0.25),
        ([1.0, 2.0, 2.0, 0.0], 0.0),
    ],
)
def test_reward_bench_2_shares_the_point_of_a_tie(scores, credit):
    assert best_of_credit(scores) == credit


def test_ties_by_hand():
    """Two questions.

    0: tied right (5, 4), wrong (1): gap 3, spread 1. reference right 6, wrong 2: gap 4. smaller gap 3: tanh(3/1 − 1)
    1: tied right (5, 2), wrong (1): gap 1, spread 3. reference right 1, wrong 2: gap −1. smaller gap −1: tanh(−1/3 − 1)
    tied 2/2 right, reference 1/2; gap > spread: 1/2; smaller gap > spread: 1/2.
    """
    prompts = [
        TiesPrompt(0, True, [5, 4], [1]),
        TiesPrompt(0, False, [6], [2]),
        TiesPrompt(1, True, [5, 2], [1]),
        TiesPrompt(1, False, [1], [2]),
    ]
    margin = (math.tanh(2) + math.tanh(-4 / 3)) / 2
    assert ties_score(prompts) == pytest.approx(0.3 * 1 + 0.3 * 0.5 + 0.2 * 0.5 + 0.2 * 0.5 + 0.01 * margin)
    assert ties_score(prompts[::-1]) == ties_score(prompts)


def test_ties_without_spread_do_not_divide_by_zero():
    """Equal right answers: gap/0 is ∞, tanh 1, so the best score is 1.01. A constant reward: 0/0 counts 0, all lost."""
    best = [TiesPrompt(7, True, [3, 3], [1]), TiesPrompt(7, False, [3], [1])]
    assert ties_score(best) == pytest.approx(1.01)
    constant = [TiesPrompt(7, True, [1, 1], [1]), TiesPrompt(7, False, [1], [1])]
    assert ties_score(constant) == 0.0
    worst = [TiesPrompt(7, True, [1, 1], [3]), TiesPrompt(7, False, [1], [3])]
    assert ties_score(worst) == pytest.approx(-0.01)


def test_a_question_without_its_reference_counts_for_its_own_accuracy_only():
    """Question 2 has a tied prompt alone, and loses it: tied 1/2, reference 1/1; the rest is of question 0."""
    prompts = [TiesPrompt(0, True, [5, 4], [1]), TiesPrompt(0, False, [6], [2]), TiesPrompt(2, True, [1, 1], [2])]
    assert ties_score(prompts) == pytest.approx(0.3 * 0.5 + 0.3 + 0.2 + 0.2 + 0.01 * math.tanh(2))
    with pytest.raises(NumericError, match="no question here has both"):
        ties_score(prompts[2:])
    with pytest.raises(NumericError, match="at least 2 right answers"):
        ties_score([TiesPrompt(0, True, [5], [1]), prompts[1]])


@pytest.mark.parametrize(
    ("right", "wrong", "wins", "ties", "rank"),
    [
        ([3.0], [1.0, 2.0], True, True, 1),
        ([2.0], [1.0, 2.0], False, True, 2),
        ([1.0], [3.0, 2.0, 0.0], False, False, 3),
        ([2.0], [2.0, 2.0, 2.0], False, True, 4),
    ],
)
def test_rewardmath_needs_to_beat_every_wrong_solution(right, wrong, wins, ties, rank):
    found = rewardmath_group(right, wrong)
    assert (found.wins, found.wins_or_ties, found.reciprocal_rank) == (wins, ties, 1 / rank)


def test_the_first_step_below_the_threshold_is_the_error():
    assert first_error([0.9, 0.5, 0.49, 0.1]) == 2
    assert first_error([0.9, 0.5]) == -1
    assert first_error([0.2, 0.9]) == 0
    assert first_error([0.9, 0.5], threshold=0.6) == 1


def test_processbench_by_hand():
    """Labels 2, 0, 1 (errors) and −1, −1. Predictions 2, 1, none; −1, 0: error 1/3, correct 1/2, F1 = 2·(1/6)/(5/6)."""
    found = processbench_f1([2, 1, None, -1, 0], [2, 0, 1, -1, -1])
    assert (found.error, found.correct) == (pytest.approx(1 / 3), 0.5)
    assert found.f1 == pytest.approx(0.4)


def test_processbench_rewards_neither_extreme():
    """Passing everything has error accuracy 0, so F1 is 0, as has calling everything wrong."""
    assert processbench_f1([-1, -1, -1], [0, 1, -1]).f1 == 0.0
    assert processbench_f1([0, 0, 0], [1, 2, -1]).f1 == 0.0
    assert processbench_f1([0, 1, -1], [0, 1, -1]).f1 == 1.0
    assert math.isnan(processbench_f1([0], [0]).f1)
    with pytest.raises(NumericError, match="one of each per solution"):
        processbench_f1([0], [0, 1])
