"""What a reward model is worth to an agent: how often the attempt that it scores highest is a right one.

The attempts are those of a policy at held-out tasks (`needs.attempts`), several at each, sampled once, so that reward
models choose among the same ones. Choosing at random and choosing perfectly bound what a choice can give; choosing the
shortest attempt is the rule that needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, TextReward
from rlhf_lab.data.attempts import Attempts
from rlhf_lab.evaluations.reward_audit import words
from rlhf_lab.statistics.choice import choice_probabilities
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.steps import auroc


def audit_attempts(reward: TextReward, tasks: Sequence[Attempts]) -> dict[str, Any]:
    """Agent accuracy, what bounds it, and how the reward ranks attempts at one task; clustered by task.

    See metrics.py. What compares right attempts with wrong ones is left out where no task has both.
    """
    prompts = [task.prompt for task in tasks for _ in task.replies]
    replies = [reply for task in tasks for reply in task.replies]
    score_N = reward(prompts, replies).total_N
    correct_N = np.array([correct for task in tasks for correct in task.correct], dtype=np.float64)
    ends = np.cumsum([0, *(len(task.replies) for task in tasks)])
    rows_of_tasks = [np.arange(begin, end) for begin, end in pairwise(ends)]
    task_numbers = np.arange(len(tasks))

    def over_tasks(value: Callable[[np.ndarray], float]) -> Any:
        return clustered_mean([value(rows) for rows in rows_of_tasks], task_numbers)

    brevity_N = -words(replies)
    metrics = {
        "agent_accuracy": over_tasks(lambda rows: chosen(score_N[rows], correct_N[rows])),
        "agent_accuracy/one": over_tasks(lambda rows: float(correct_N[rows].mean())),
        "agent_accuracy/any": over_tasks(lambda rows: float(correct_N[rows].max())),
        "agent_accuracy/shortest": over_tasks(lambda rows: chosen(brevity_N[rows], correct_N[rows])),
        "attempts/tasks": len(tasks),
    }
    wins, of_task = rank_within_tasks(score_N, correct_N, rows_of_tasks)
    if wins.size:
        metrics["accuracy/attempts"] = clustered_mean(wins, of_task)
        cluster_N = np.repeat(task_numbers, [len(task.replies) for task in tasks])
        metrics["auroc/attempts"] = auroc(score_N, correct_N > 0, cluster_N)
    return metrics


def chosen(score_N: FloatArray, correct_N: FloatArray) -> float:
    """Expected correctness of the best of all attempts at a task; attempts with equal scores are equally likely."""
    return float(choice_probabilities(score_N, len(score_N)) @ correct_N)


def rank_within_tasks(
    score_N: FloatArray, correct_N: FloatArray, rows_of_tasks: Sequence[np.ndarray]
) -> tuple[FloatArray, np.ndarray]:
    """(outcomes, task numbers) of all pairs of a right and a wrong attempt at one task: 1 where the right one scores
    higher, ½ where both score the same."""
    outcomes: list[FloatArray] = []
    numbers: list[int] = []
    for number, rows in enumerate(rows_of_tasks):
        right = score_N[rows][correct_N[rows] > 0]
        wrong = score_N[rows][correct_N[rows] == 0]
        wins = (np.sign(right[:, None] - wrong) / 2 + 0.5).ravel()
        outcomes.append(wins)
        numbers += [number] * wins.size
    return np.concatenate(outcomes) if outcomes else np.zeros(0), np.array(numbers, dtype=int)
