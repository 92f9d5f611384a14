"""Makes preference pairs of attempts at tasks: one that ended right is chosen over one that ended wrong.

Outcomes are the labels, as for an outcome reward model (arXiv:2110.14168), but attempts are compared within a task, so
that the pairs are rows like human ones and mix with them. Attempts at held-out tasks are written beside the pairs.

Left out: pairs of two right attempts (the shorter one over the longer), and pairs of single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Demonstrating, Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.attempts import Attempts, attempt_text, write_attempts
from rlhf_lab.packs.agents.synthesis.settings import AttemptPairs
from rlhf_lab.packs.agents.synthesis.trajectories import demonstrated
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Item, Row
from rlhf_lab.sampling.policy_replies import PolicyReplies
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Result, Run

ALL_RIGHT = "every attempt succeeded"
ALL_WRONG = "no attempt succeeded"


class AttemptPairMaker:
    """Attempts tasks of both splits, and writes pairs of the training tasks and the held-out attempts."""

    def __init__(self, settings: AttemptPairs, run: Run):
        self.settings, self.run = settings, run
        environment = run.corpus.environment
        if environment is None:
            raise ConfigError(f"data={run.corpus.name} has no environment; use data=tools or data=environment")
        if settings.demonstrate and not isinstance(environment, Demonstrating):
            raise ConfigError(
                f"algorithm.demonstrate=true: the environment of data={run.corpus.name} does not show how its tasks "
                "are done; leave it out"
            )
        self.environment = environment
        self.policy = PolicyReplies(run)
        self.held_out = run.corpus.tasks("test")[: settings.heldout_tasks]
        self.held_out_prompts = {task.prompt for task in run.corpus.tasks("test")}
        tasks = [*run.corpus.tasks("train"), *self.held_out]
        self.tasks = {task.prompt: task for task in tasks}

    def finish(self) -> Result:
        training = self._draw_training_tasks()
        items = [*training, *(Item(task.prompt, 0) for task in self.held_out)]
        rows = making.settle_all(self.run, items, self._settle, "attempting tasks")
        attempts = [Attempts(row["prompt"], row["replies"], row["correct"]) for row in rows]
        write_attempts(self.run.folder, attempts[len(training) :])
        metrics = self._write_pairs(attempts[: len(training)])
        return Result(metrics=metrics, primary=["made/acceptance", "made/success", "made/longer_chosen"])

    def _draw_training_tasks(self) -> list[Item]:
        prompts = list(dict.fromkeys(task.prompt for task in self.run.corpus.tasks("train")))
        return making.draw_tasks(self.run, prompts, self.settings.prompts, "attempt_pairs/tasks")

    def _settle(self, chunk: int, items: Sequence[Item]) -> list[Row]:
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
                f"the environment of data={self.run.corpus.name} does not say which episodes are right (its grade has "
                "no `correct`), and algorithm=attempt_pairs compares right ones with wrong ones"
            )
        # a last turn that was cut does not end
        return [int(right and episode.ended) for right, episode in zip(correct, episodes, strict=True)]

    def _write_pairs(self, tasks: Sequence[Attempts]) -> dict[str, Any]:
        rows_of_tasks = [self._rows(attempts) for attempts in tasks]
        rows = [row for rows_of_task in rows_of_tasks for row in rows_of_task]
        kept, rejected = making.write_corpus(self.run, "pairs", rows, {"attempts": self.settings.attempts})
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
            words_N = [(len(row["chosen"].split()), len(row["rejected"].split())) for row in kept]
            metrics["made/words"] = making.mean_over_prompts([chosen for chosen, _ in words_N], kept)
            longer_N = [np.sign(chosen - rejected) / 2 + 0.5 for chosen, rejected in words_N]
            metrics["made/longer_chosen"] = making.mean_over_prompts(longer_N, kept)
        return metrics

    def _rows(self, attempts: Attempts) -> list[Row]:
        """The pairs of a task; one row that says why there are none."""
        right, wrong = distinct_outcomes(attempts)
        if not right and self.settings.demonstrate:
            right = [self._demonstrate(attempts.prompt)]
        problem = None
        if attempts.prompt in self.held_out_prompts:
            problem = making.CONTAMINATED
        elif not right or not wrong:
            problem = ALL_WRONG if wrong else ALL_RIGHT
        if problem:
            return [{"prompt": attempts.prompt, "replies": [*right, *wrong], "problem": problem}]
        return [
            {"prompt": attempts.prompt, "chosen": chosen, "rejected": rejected, "correct_chosen": 1, "problem": None}
            for chosen, rejected in pair_up(right, wrong, self.settings.pairs_per_task)
        ]

    def _demonstrate(self, prompt: str) -> str:
        """The environment's own attempt at a task, as text."""
        assert isinstance(self.environment, Demonstrating)
        task = self.tasks[prompt]
        shown = demonstrated(self.environment, task)
        return attempt_text(Episode(task, shown.prompt, shown.completion))


def distinct_outcomes(attempts: Attempts) -> tuple[list[str], list[str]]:
    """The different texts of right and of wrong attempts at a task, in the order in which they were made."""
    outcomes = list(zip(attempts.replies, attempts.correct, strict=True))
    right = dict.fromkeys(reply for reply, correct in outcomes if correct)
    # a tool that fails at random may let the same words end right once and wrong once: that is no preference
    wrong = dict.fromkeys(reply for reply, correct in outcomes if not correct and reply not in right)
    return list(right), list(wrong)


def pair_up(right: Sequence[str], wrong: Sequence[str], most: int) -> list[tuple[str, str]]:
    """(right, wrong) attempts at a task: `most` pairs at most, each with another wrong one; right ones take turns."""
    return [(right[i % len(right)], reply) for i, reply in enumerate(wrong[:most])]


def build(settings: AttemptPairs, run: Run) -> AttemptPairMaker:
    return AttemptPairMaker(settings, run)
