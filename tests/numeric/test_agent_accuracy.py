"""Reward that a reward model gives an agent that it chooses for, with the arithmetic on the page."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.algorithms.reward_models.attempt_audit import audit_attempts, chosen, rank_within_tasks
from rlhf_lab.algorithms.reward_models.reward_model import auroc_of_pairs
from rlhf_lab.core.types import Pair, RewardBatch
from rlhf_lab.data.generated import Attempts

SCORES = {"a": 3.0, "b": 1.0, "c c": 2.0, "d": 0.0, "e": 5.0, "f f": 5.0, "g": 4.0, "h": 1.0, "i": 9.0}
TASKS = [
    Attempts("p", ["a", "b", "c c"], [1, 0, 0]),  # the best is right
    Attempts("q", ["d", "e", "f f"], [0, 1, 0]),  # two are best, one of them right
    Attempts("r", ["g", "h", "i"], [0, 0, 0]),  # none is right
]


def reward(prompts, responses):
    return RewardBatch(np.array([SCORES[response] for response in responses]))


def test_the_choice_its_bounds_and_the_rule_without_a_model():
    """Chosen: 1, ½, 0 → ½. One at random: ⅓, ⅓, 0 → 2/9. Any: 1, 1, 0 → ⅔. Shortest: ½, ½, 0 → ⅓: of the two
    replies with one word of the first task one is right, and so of the second."""
    audit = audit_attempts(reward, TASKS)
    assert audit["agent_accuracy"].mean == pytest.approx(1 / 2)
    assert audit["agent_accuracy/one"].mean == pytest.approx(2 / 9)
    assert audit["agent_accuracy/any"].mean == pytest.approx(2 / 3)
    assert audit["agent_accuracy/shortest"].mean == pytest.approx(1 / 3)
    assert audit["attempts/tasks"] == 3


def test_attempts_are_ranked_within_their_task():
    """First task 3 > 1 and 3 > 2; second 5 > 0 and 5 = 5: outcomes 1, 1, 1, ½, mean ⅞. The third has no pair."""
    scores = np.array([SCORES[response] for task in TASKS for response in task.replies])
    correct = np.array([c for task in TASKS for c in task.correct], dtype=float)
    wins, tasks = rank_within_tasks(scores, correct, [np.arange(3), np.arange(3, 6), np.arange(6, 9)])
    assert wins.tolist() == [1, 1, 1, 0.5] and tasks.tolist() == [0, 0, 1, 1]
    assert audit_attempts(reward, TASKS)["accuracy/attempts"].mean == pytest.approx(7 / 8)


def test_between_tasks_a_score_may_fail_that_ranks_each_task():
    """Right 3 and 5 against wrong 1, 2 | 0, 5 | 4, 1, 9: 3 beats 1 2 0 1 of seven, 5 beats 1 2 0 4 1 and ties 5:
    (4 + 5.5)/14."""
    assert audit_attempts(reward, TASKS)["auroc/attempts"].mean == pytest.approx(9.5 / 14)


def test_a_task_is_one_independent_unit():
    """Eight attempts at each of two tasks are two units, not sixteen: t on one degree of freedom."""
    tasks = [Attempts("p", ["a"] * 8, [1] * 8), Attempts("q", ["b"] * 8, [0] * 8)]
    audit = audit_attempts(reward, tasks)
    assert audit["agent_accuracy"].clusters == 2
    mixed = [Attempts(name, ["a", "b", "d"], [1, 0, 0]) for name in "pqrs"]
    assert audit_attempts(reward, mixed)["accuracy/attempts"].clusters == 4
    assert audit_attempts(reward, mixed)["accuracy/attempts"].n == 8


def test_tasks_without_contrast_have_no_ranking():
    audit = audit_attempts(reward, [Attempts("p", ["a", "b"], [1, 1]), Attempts("q", ["d", "e"], [0, 0])])
    assert not {"accuracy/attempts", "auroc/attempts"} & set(audit) or math.isnan(audit["accuracy/attempts"].mean)
    assert audit["agent_accuracy"].mean == 0.5


def test_equal_scores_choose_at_random():
    assert chosen(np.zeros(4), np.array([1.0, 0, 0, 0])) == pytest.approx(0.25)
    assert chosen(np.array([1.0, 2, 2, 0]), np.array([0.0, 1, 0, 1])) == pytest.approx(0.5)


def test_the_area_of_pairs_compares_replies_of_any_prompt():
    """Chosen 2, 5 against rejected 1, 4: 2 > 1, 2 < 4, 5 > 1, 5 > 4: ¾, though each pair is ranked right."""
    pairs = [Pair("p", "x", "y"), Pair("q", "z", "w")]
    area = auroc_of_pairs(np.array([2.0, 5.0]), np.array([1.0, 4.0]), pairs)
    assert area.mean == pytest.approx(3 / 4)
    assert area.clusters == 2 and area.n == 4
