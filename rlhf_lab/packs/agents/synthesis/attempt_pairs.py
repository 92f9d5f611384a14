"""Stage that makes preference pairs of attempts at tasks: a successful attempt is preferred to a failed one.

Outcomes are the labels, as for an outcome reward model (arXiv:2110.14168). Attempts are compared within a task, so the
pairs have the form of human preference pairs and can be mixed with them. Attempts at held-out tasks are written to a
separate file.

Not included: pairs of two successful attempts (shorter over longer), and pairs of single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Demonstrating, Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.generated import Attempts, attempt_text, write_attempts
from rlhf_lab.packs.agents.synthesis.settings import AttemptPairs
from rlhf_lab.packs.agents.synthesis.trajectories import demonstrated, environment_of
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Row, SynthesisItem
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Result, Run

ALL_RIGHT = "every attempt succeeded"
ALL_WRONG = "no attempt succeeded"


class AttemptPairMaker:
    """Attempts tasks of both splits; writes pairs for the training tasks, and the attempts at held-out tasks."""

    def __init__(self, settings: AttemptPairs, run: Run):
        self.settings, self.run = settings, run
        environment = environment_of(run)
        if settings.demonstrate and not isinstance(environment, Demonstrating):
            raise ConfigError(
                f"algorithm.demonstrate=true: the environment of data={run.corpus.name} has no demonstrations of its "
                "tasks; leave it out"
            )
        self.environment = environment
        self.policy = PolicyResponses(run)
        # Attempts are found by their prompt, so of several tasks with one prompt, which may have other answers, one is
        # attempted.
        heldout = {task.prompt: task for task in run.corpus.tasks("test")}
        self.heldout = list(heldout.values())[: settings.heldout_tasks]
        # All test prompts, not only those that are attempted here: no training row may have one of them.
        self.held_out_prompts = set(heldout)
        self.tasks = {task.prompt: task for task in run.corpus.tasks("train")} | heldout

    def finish(self) -> Result:
        prompts = list(dict.fromkeys(task.prompt for task in self.run.corpus.tasks("train")))
        training = making.draw_tasks(self.run, prompts, self.settings.prompts, "attempt_pairs/tasks")
        # One pass over both kinds of tasks shares the batches of the sampler; the held-out tasks come last.
        heldout = [SynthesisItem(task.prompt, 0) for task in self.heldout]
        items = [*training, *heldout]
        rows = making.make_all(self.run, items, self._make_result, "attempting tasks")
        attempts = [Attempts(row["prompt"], row["replies"], row["correct"]) for row in rows]
        write_attempts(self.run.directory, attempts[len(training) :])
        metrics = self._write_pairs(attempts[: len(training)])
        return Result(metrics=metrics, primary=["made/acceptance", "made/success", "made/longer_chosen"])

    def _make_result(self, chunk: int, items: Sequence[SynthesisItem]) -> list[Row]:
        tasks = [self.tasks[item.prompt] for item in items]
        seed = self.run.seed("attempt_pairs/attempts", chunk)
        collected = self.policy.collector.collect(self.policy.policy, tasks, self.settings.attempts, seed)
        return [
            {
                "prompt": task.prompt,
                "replies": [attempt_text(episode) for episode in episodes],
                "correct": self._outcomes(episodes),
            }
            for task, episodes in zip(tasks, collected, strict=True)
        ]

    def _outcomes(self, episodes: Sequence[Episode]) -> list[int]:
        correct = self.environment.grade(episodes).get("correct")
        if correct is None:
            raise ConfigError(
                "algorithm=attempt_pairs needs an environment that grades episodes as right or wrong, but the grade of "
                f"data={self.run.corpus.name} has no `correct`; use data=tools or another environment"
            )
        # An episode whose last turn was truncated has not finished, so it counts as wrong.
        outcomes = zip(correct, episodes, strict=True)
        return [int(right and episode.finished) for right, episode in outcomes]

    def _write_pairs(self, tasks: Sequence[Attempts]) -> dict[str, Any]:
        rows_of_tasks = [self._rows(attempts) for attempts in tasks]
        rows = [row for rows_of_task in rows_of_tasks for row in rows_of_task]
        kept, rejected = making.write_corpus(self.run, "pairs", rows, {"attempts": self.settings.attempts})
        # The task is the cluster: attempts at one task are not independent.
        task_numbers = np.arange(len(tasks))
        has_pairs = np.array([rows_of_task[0]["problem"] is None for rows_of_task in rows_of_tasks], dtype=float)
        success = np.array([np.mean(attempts.correct) for attempts in tasks])
        metrics = {
            **making.counts(rows, kept, rejected),
            "made/items": len(tasks),
            "made/acceptance": clustered_rate(has_pairs, task_numbers),
            "made/attempts": float(self.settings.attempts),
            "made/success": clustered_mean(success, task_numbers),
        }
        if kept:
            # Length bias is measured here, because a reward model may learn it instead of correctness.
            chosen_words = [len(row["chosen"].split()) for row in kept]
            rejected_words = [len(row["rejected"].split()) for row in kept]
            metrics["made/words"] = making.mean_over_prompts(chosen_words, kept)
            longer_N = win_or_tie(np.array(chosen_words) - np.array(rejected_words))
            metrics["made/longer_chosen"] = making.mean_over_prompts(longer_N, kept)
        return metrics

    def _rows(self, attempts: Attempts) -> list[Row]:
        """Return the pairs of a task, or one row that says why there are none."""
        right, wrong = distinct_outcomes(attempts)
        if not right and self.settings.demonstrate:  # the environment's solution stands in for a successful attempt
            right = self._demonstrate(attempts.prompt)
        problem = None
        if attempts.prompt in self.held_out_prompts:
            problem = making.CONTAMINATED
        elif not right or not wrong:
            problem = ALL_WRONG if wrong else ALL_RIGHT
        if problem:
            return [{"prompt": attempts.prompt, "replies": [*right, *wrong], "problem": problem}]
        # Each pair has a different wrong attempt; right attempts alternate.
        return [
            {
                "prompt": attempts.prompt,
                "chosen": right[number % len(right)],
                "rejected": rejected,
                "correct_chosen": 1,
                "problem": None,
            }
            for number, rejected in enumerate(wrong[: self.settings.pairs_per_task])
        ]

    def _demonstrate(self, prompt: str) -> list[str]:
        """Return the text of the environment's demonstration of a task in a list. The list is empty if the
        demonstration fails, e.g. because a tool is busy.
        """
        assert isinstance(self.environment, Demonstrating)
        task = self.tasks[prompt]
        shown = demonstrated(self.environment, task)
        episode = Episode(task, shown.prompt, shown.completion)
        correct = self.environment.grade([episode]).get("correct")
        is_right = correct is None or bool(correct[0])
        return [attempt_text(episode)] if is_right else []


def distinct_outcomes(attempts: Attempts) -> tuple[list[str], list[str]]:
    """Return the distinct texts of right and of wrong attempts at a task, in the order of generation."""
    outcomes = list(zip(attempts.replies, attempts.correct, strict=True))
    right = dict.fromkeys(response for response, correct in outcomes if correct)
    # With a randomly failing tool the same text may be right once and wrong once. Such a pair states no preference.
    wrong = dict.fromkeys(response for response, correct in outcomes if not correct and response not in right)
    return list(right), list(wrong)


def build(settings: AttemptPairs, run: Run) -> AttemptPairMaker:
    return AttemptPairMaker(settings, run)
