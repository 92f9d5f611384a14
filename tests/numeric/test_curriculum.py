"""The curriculum at the edge of competence, with the arithmetic on the page."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rlhf_lab.algorithms.policy_gradient.curriculum import EdgeCurriculum, by_length, ordered_tasks


def test_success_by_hand():
    """Groups of four, rewards 0 and 1: one right, p = (1 + ½)/5 = .3; all right, (4 + ½)/5 = .9; none, ½/5 = .1.
    Then the first is drawn again, all right: n = 2 + 4, Σ = ½ + 4, p = (4½ + ½)/7."""
    curriculum = EdgeCurriculum(4, explore=0.0)
    curriculum.observe([0, 1, 2], [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    np.testing.assert_allclose(curriculum.success(), [0.3, 0.9, 0.1, np.nan], rtol=0, atol=1e-15)
    curriculum.observe([0], [[1, 1, 1, 1]])
    assert curriculum.success()[0] == pytest.approx(5 / 7, abs=1e-15)


def test_the_scale_of_the_reward_does_not_matter_and_unscored_episodes_do_not_count():
    """Rewards of −1 and 3 with one unscored: a task with 3 and −1 has p = (1 + ½)/3 = ½."""
    curriculum = EdgeCurriculum(3, explore=0.0)
    curriculum.observe([0, 1, 2], [[3, -1, math.nan], [3, 3, 3], [math.nan] * 3])
    np.testing.assert_allclose(curriculum.success(), [0.5, 3.5 / 4, np.nan], rtol=0, atol=1e-15)


def test_as_long_as_all_rewards_are_the_same_nothing_is_known():
    curriculum = EdgeCurriculum(2, explore=0.0)
    curriculum.observe([0, 1], [[0, 0], [0, 0]])
    assert curriculum.success().tolist() == [0.5, 0.5]


def test_tasks_are_drawn_in_proportion_to_their_weight():
    """w = 4p(1 − p): .84 for p = .3, .36 for .9 and for .1. The first of a draw by weight is each with w/Σw."""
    curriculum = EdgeCurriculum(3, explore=0.0)
    curriculum.observe([0, 1, 2], [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    draws = 20_000
    counts = np.bincount([curriculum.draw(1, seed)[0] for seed in range(draws)], minlength=3)
    expected = np.array([0.84, 0.36, 0.36]) / 1.56
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) < 4 * error).all()


def test_half_of_a_draw_is_new_as_long_as_there_are_new_tasks():
    curriculum = EdgeCurriculum(100, explore=0.5)
    assert sorted(curriculum.draw(10, seed=0)) == sorted(set(curriculum.draw(10, seed=0)))  # none twice
    curriculum.observe(range(40), [[0, 1]] * 40)
    for seed in range(20):
        selected = curriculum.draw(10, seed)
        assert len(set(selected)) == 10
        assert sum(position >= 40 for position in selected) == 5
    curriculum.observe(range(40, 97), [[0, 1]] * 57)
    assert sum(position >= 97 for position in curriculum.draw(10, seed=0)) == 3
    odd = [sum(position >= 97 for position in EdgeCurriculum.draw(curriculum, 3, seed)) for seed in range(400)]
    assert set(odd) == {1, 2} and 1.4 < np.mean(odd) < 1.6  # 1.5 in the mean


def test_more_than_there_is():
    curriculum = EdgeCurriculum(3, explore=0.5)
    order = curriculum.draw(7, seed=1)
    assert len(order) == 7
    assert set(order[:3]) == {0, 1, 2}


def test_what_is_logged():
    curriculum = EdgeCurriculum(5, explore=0.5)
    assert math.isnan(curriculum.metrics([0, 1])["curriculum/difficulty"])
    curriculum.observe([0, 1], [[1, 0, 0, 0], [1, 1, 1, 1]])
    metrics = curriculum.metrics([0, 1, 2, 3])
    assert metrics["curriculum/difficulty"] == pytest.approx((0.7 + 0.1) / 2)
    assert metrics["curriculum/new"] == 0.5
    assert metrics["curriculum/tried"] == pytest.approx(2 / 5)


def test_a_copy_from_its_state_draws_the_same():
    curriculum = EdgeCurriculum(50, explore=0.3)
    rng = np.random.default_rng(0)
    for iteration in range(5):
        selected = curriculum.draw(8, iteration)
        curriculum.observe(selected, rng.integers(0, 2, (8, 4)).astype(float).tolist())
    copy = EdgeCurriculum(50, explore=0.3)
    copy.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    assert [copy.draw(8, seed) for seed in range(5)] == [curriculum.draw(8, seed) for seed in range(5)]
    assert copy.state_dict() == curriculum.state_dict()


def test_tasks_are_ordered_by_the_words_of_their_prompts():
    assert by_length(["a b c", "a", "a b", "b", "a  b\nc d"]) == [1, 3, 2, 0, 4]


def test_an_ordered_run_goes_through_all_tasks_once():
    """12 tasks, 4 iterations of 3: sections 0–2, 3–5, 6–8 and 9–11, each in random order."""
    order = list(range(12))
    drawn = [ordered_tasks(order, 3, iteration, 4, seed=iteration) for iteration in range(4)]
    assert [sorted(part) for part in drawn] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert ordered_tasks(order, 3, 1, 4, seed=1) == drawn[1]  # it depends on the seed alone, so a run resumes exactly
    assert len({tuple(ordered_tasks(order, 3, 1, 4, seed=seed)) for seed in range(20)}) > 1
    # More samples than a fourth of the tasks: sections of 6 start at 0, 2, 4 and 6.
    assert [min(ordered_tasks(order, 6, iteration, 4, seed=0)) for iteration in range(4)] == [0, 2, 4, 6]
    # Fewer: a section of 3 tasks has 2 of them. More than there are: all tasks, repeated.
    assert set(ordered_tasks(order, 2, 3, 4, seed=0)) < {9, 10, 11}
    assert sorted(ordered_tasks(order, 24, 0, 4, seed=0)) == sorted(order * 2)
    assert ordered_tasks([7], 1, 0, 1, seed=0) == [7]
