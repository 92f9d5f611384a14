"""Stage that records conversations with tools for supervised training: demonstrations, or successes of the policy.

The row of a task is its shortest successful attempt. Training a policy on its own successes is rejection-sampling
fine-tuning (arXiv:2308.01825), the natural baseline for reinforcement learning on the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rlhf_lab.core.episodes import Demonstrating, Environment, Episode, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.transcript import render_prompt, response_text, to_conversation
from rlhf_lab.packs.agents.synthesis.settings import Trajectories
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Row, SynthesisItem
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run

FAILED = "no attempt succeeded"
UNFINISHED = "the chosen attempt was cut off"


@dataclass(frozen=True)
class StoredAttempt:
    """One attempt at a task, in the form of a row.

    Attributes:
        prompt: the conversation before the last turn.
        completion: the last turn.
        success: 0 or 1; None if the environment does not grade success.
        turns: number of assistant turns.
        finished: False if the last turn was cut off at the maximum length.
    """

    prompt: str
    completion: str
    success: float | None
    turns: int
    finished: bool = True


def environment_of(run: Run) -> Environment:
    """Return the environment of the run's data. Raise ConfigError if they have none."""
    if run.corpus.environment is None:
        raise ConfigError(f"data={run.corpus.name} has no environment; use data=tools or data=environment")
    return run.corpus.environment


class TrajectoryMaker:
    """Base class: lets a sub-class attempt training tasks, and writes the selected attempt at each task to a corpus.

    Args:
        settings: settings of the stage.
        run: the run.
        teacher: name of the teacher, a column of the rows.

    Class attributes:
        name: name of the stage in its seeds.
        primary: its main metrics.
    """

    name: ClassVar[str] = "trajectories"
    primary: ClassVar[list[str]] = ["made/acceptance", "made/success", "made/turns"]

    def __init__(self, settings: Any, run: Run, teacher: str):
        self.settings, self.run, self.teacher = settings, run, teacher
        self.environment = environment_of(run)
        self.tasks = {task.prompt: task for task in run.corpus.tasks("train")}
        self.heldout = {task.prompt for task in run.corpus.tasks("test")}

    def attempt(self, tasks: Sequence[Task], chunk: int) -> list[list[StoredAttempt]]:
        """Return the attempts at each task; `chunk` is the index of the tasks' chunk."""
        raise NotImplementedError

    def finish(self) -> Result:
        items = making.draw_tasks(self.run, list(self.tasks), self.settings.prompts, f"{self.name}/tasks")
        rows = making.make_all(self.run, items, self._make_result, "attempting tasks")
        return Result(metrics=self._write(rows), primary=self.primary)

    def _make_result(self, chunk: int, items: Sequence[SynthesisItem]) -> list[Row]:
        tasks = [self.tasks[item.prompt] for item in items]
        pairs = zip(tasks, self.attempt(tasks, chunk), strict=True)
        return [self._row(task, of_task) for task, of_task in pairs]

    def _row(self, task: Task, attempts: Sequence[StoredAttempt]) -> Row:
        """Return the row of a task: its shortest successful attempt, and statistics of all attempts."""
        successes = [attempt for attempt in attempts if attempt.success]
        # If the environment does not grade success, no attempt counts as failed.
        is_ungraded = all(attempt.success is None for attempt in attempts)
        needs_success = self.settings.only_successes and not is_ungraded
        candidates = successes if needs_success else successes or attempts
        problem = None if candidates else FAILED
        # A cut attempt may be the shortest one, but its end must not be imitated.
        best = min(candidates or attempts, key=lambda attempt: (not attempt.finished, attempt.turns))
        if problem is None and not best.finished:
            problem = UNFINISHED
        graded = [attempt.success for attempt in attempts if attempt.success is not None]
        # Ungraded rows have no column for success, instead of a wrong value.
        correct: dict[str, float] = {} if best.success is None else {"correct_chosen": best.success}
        return {
            **self.row_of(task, best, problem),
            "attempts": len(attempts),
            "success": sum(graded) / len(graded) if graded else None,
            **correct,
        }

    def row_of(self, task: Task, attempt: StoredAttempt, problem: str | None) -> Row:
        """Return the columns that describe the selected attempt at a task, and why it is rejected, if it is."""
        # A task that is also in the test split would leak it into training, even if its attempt succeeded.
        if task.prompt in self.heldout:
            problem = making.CONTAMINATED
        return {
            "prompt": attempt.prompt,
            "completion": attempt.completion,
            "learn_from": len(to_conversation(task.prompt).messages),
            "task": task.prompt,
            "category": str(task.metadata.get("category", "")),
            "turns": attempt.turns,
            "problem": problem,
        }

    def _write(self, rows: Sequence[Row]) -> dict[str, Any]:
        columns = {"teacher": self.teacher}
        kept, rejected = making.write_corpus(self.run, "demonstrations", rows, columns)
        metrics = making.counts(rows, kept, rejected)
        # The task is the unit of these statistics: each became one row, or none.
        tasks = np.arange(len(rows))
        attempts = [row["attempts"] for row in rows]
        metrics["made/attempts"] = float(np.mean(attempts))
        success_N = column(rows, "success")
        if not np.isnan(success_N).all():
            metrics["made/success"] = clustered_mean(success_N, tasks)
        if kept:
            metrics["made/turns"] = clustered_mean(column(kept, "turns"), tasks[: len(kept)])
        return metrics | by_category(rows)


class OwnTrajectories(TrajectoryMaker):
    """Stage `trajectories`: records the environment's demonstrations, or attempts of a policy."""

    def __init__(self, settings: Trajectories, run: Run):
        super().__init__(settings, run, settings.teacher)
        if settings.teacher == "world" and not isinstance(self.environment, Demonstrating):
            raise ConfigError(
                f"algorithm.teacher=world: the environment of data={run.corpus.name} has no demonstrations of its "
                "tasks; use algorithm.teacher=policy with needs.policy"
            )
        self.policy = PolicyResponses(run) if settings.teacher == "policy" else None

    def attempt(self, tasks: Sequence[Task], chunk: int) -> list[list[StoredAttempt]]:
        return self._demonstrate(tasks) if self.policy is None else self._sample(tasks, chunk)

    def _demonstrate(self, tasks: Sequence[Task]) -> list[list[StoredAttempt]]:
        """Return the environment's demonstrations as graded attempts: a demonstration may fail on a busy tool."""
        assert isinstance(self.environment, Demonstrating)
        shown = [demonstrated(self.environment, task) for task in tasks]
        episodes = [
            Episode(task, attempt.prompt, attempt.completion) for task, attempt in zip(tasks, shown, strict=True)
        ]
        successes = self._grade(episodes)
        graded = zip(shown, successes, strict=True)
        return [[replace(attempt, success=success)] for attempt, success in graded]

    def _grade(self, episodes: Sequence[Episode]) -> list[float | None]:
        """Return 1 or 0 for each episode; None for all if the environment does not grade success."""
        correct = self.environment.grade(episodes).get("correct")
        if correct is None:
            return [None] * len(episodes)
        return [float(value) for value in correct]

    def _sample(self, tasks: Sequence[Task], chunk: int) -> list[list[StoredAttempt]]:
        assert self.policy is not None
        seed = self.run.seed("trajectories/attempts", chunk)
        size = self.settings.attempts
        collected = self.policy.collector.collect(self.policy.policy, tasks, size, seed)
        # All episodes are graded in one call; the attempts are then divided by task again.
        episodes = [episode for group in collected for episode in group]
        successes = self._grade(episodes)
        if self.settings.only_successes and None in successes:
            raise ConfigError(
                f"the grade of data={self.run.corpus.name} has no `correct`, so successful episodes are unknown; "
                "use algorithm.only_successes=false"
            )
        graded = zip(episodes, successes, strict=True)
        attempts = [sampled_attempt(episode, success) for episode, success in graded]
        starts = range(0, len(attempts), size)
        return [attempts[start : start + size] for start in starts]


def demonstrated(environment: Demonstrating, task: Task) -> StoredAttempt:
    """Return the environment's demonstration of a task as an attempt without a grade."""
    messages, tools = to_conversation(task.prompt)
    *earlier, last = environment.demonstration(task)
    turns = sum(message["role"] == "assistant" for message in earlier) + 1
    prompt = render_prompt([*messages, *earlier], tools)
    return StoredAttempt(prompt, response_text(last), None, turns)


def sampled_attempt(episode: Episode, success: float | None) -> StoredAttempt:
    # An episode with a truncated last turn counts as failed, unless nothing is known about success.
    graded = success if episode.finished or success is None else 0.0
    return StoredAttempt(episode.prompt, episode.response, graded, len(episode.turns), episode.finished)


def by_category(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Estimate the fraction of tasks that became a row, by category; empty if tasks have no categories."""
    categories = sorted({row["category"] for row in rows if row["category"]})
    fractions = {}
    for category in categories:
        accepted = [not row["problem"] for row in rows if row["category"] == category]
        accepted_N = np.array(accepted, dtype=float)
        each_task = np.arange(len(accepted))
        fractions[f"made/accepted/{category}"] = clustered_rate(accepted_N, each_task)
    return fractions


def build(settings: Trajectories, run: Run) -> OwnTrajectories:
    return OwnTrajectories(settings, run)
