"""Best-of-n audit of a reward model for an agent: how often the attempt with the highest score is correct.

The attempts (`needs.attempts`) are several samples of a policy at each held-out task, sampled once, so that all reward
models choose among the same ones. Random and perfect choice bound the result. The rule "choose the shortest" is the
baseline that needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, TextReward
from rlhf_lab.data.generated import Attempts
from rlhf_lab.evaluations.reward_audit import words
from rlhf_lab.statistics.best_of_n import choice_probabilities
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.steps import auroc


def audit_attempts(reward: TextReward, tasks: Sequence[Attempts]) -> dict[str, Any]:
    """Return agent accuracy, its bounds, and the ranking of attempts at the same task, clustered by task.

    Definitions: metrics.py. Comparisons of correct with wrong attempts are omitted if no task has both.
    """
    prompts = [task.prompt for task in tasks for _ in task.replies]
    replies = [response for task in tasks for response in task.replies]
    score_N = reward(prompts, replies).total_N
    correct_N = np.array([correct for task in tasks for correct in task.correct], dtype=np.float64)
    # Attempts of all tasks are scored together, so each task is a range of rows.
    ends = np.cumsum([0, *(len(task.replies) for task in tasks)])
    rows_of_tasks = [np.arange(start, end) for start, end in pairwise(ends)]
    task_numbers = np.arange(len(tasks))

    def over_tasks(value: Callable[[np.ndarray], float]) -> Any:
        return clustered_mean([value(rows) for rows in rows_of_tasks], task_numbers)

    # The highest brevity is the shortest attempt.
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
    """Return the expected correctness of the attempt with the highest score; ties are broken uniformly at random."""
    return float(choice_probabilities(score_N, len(score_N)) @ correct_N)


def rank_within_tasks(
    score_N: FloatArray, correct_N: FloatArray, rows_of_tasks: Sequence[np.ndarray]
) -> tuple[FloatArray, np.ndarray]:
    """Return (outcomes, task indices) of all pairs of a correct and a wrong attempt at the same task.

    The outcome is 1 if the correct attempt scores higher, ½ if both scores are equal, else 0.
    """
    outcomes: list[FloatArray] = []
    numbers: list[int] = []
    for index, rows in enumerate(rows_of_tasks):
        right = score_N[rows][correct_N[rows] > 0]
        wrong = score_N[rows][correct_N[rows] == 0]
        wins = win_or_tie(right[:, None] - wrong).ravel()
        outcomes.append(wins)
        numbers += [index] * wins.size
    all_outcomes = np.concatenate(outcomes) if outcomes else np.zeros(0)
    return all_outcomes, np.array(numbers, dtype=int)
