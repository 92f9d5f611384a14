"""Makes conversations with tools to imitate: by someone who knows the tasks, or the successes of the policy itself.

The shortest successful attempt at a task is its row. A policy that imitates its own successes is rejection-sampling
fine-tuning (arXiv:2308.01825): the honest baseline of reinforcement learning on the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Demonstrating, Episode, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.transcript import render_prompt, reply_text, to_conversation
from rlhf_lab.packs.agents.synthesis.settings import Trajectories
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Item, Row
from rlhf_lab.sampling.policy_replies import PolicyReplies
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Result, Run

FAILED = "no attempt succeeded"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task, as a row holds it.

    Attributes:
        prompt: the conversation before the last turn.
        completion: the last turn.
        success: 0 or 1; None where the environment cannot say.
        turns: of the assistant.
    """

    prompt: str
    completion: str
    success: float | None
    turns: int


class TrajectoryMaker:
    """Attempts training tasks and writes the corpus."""

    def __init__(self, settings: Trajectories, run: Run):
        self.settings, self.run = settings, run
        environment = run.corpus.environment
        if environment is None:
            raise ConfigError(f"data={run.corpus.name} has no environment; use data=tools or data=environment")
        if settings.teacher == "world" and not isinstance(environment, Demonstrating):
            raise ConfigError(
                f"algorithm.teacher=world: the environment of data={run.corpus.name} does not show how its tasks are "
                "done; use algorithm.teacher=policy with needs.policy"
            )
        self.environment = environment
        self.policy = PolicyReplies(run) if settings.teacher == "policy" else None
        self.tasks = {task.prompt: task for task in run.corpus.tasks("train")}
        self.held_out = {task.prompt for task in run.corpus.tasks("test")}

    def finish(self) -> Result:
        rows = making.settle_all(self.run, self._items(), self._settle, "attempting tasks")
        return Result(metrics=self._write(rows), primary=["made/acceptance", "made/success", "made/turns"])

    def _items(self) -> list[Item]:
        return making.draw_tasks(self.run, list(self.tasks), self.settings.prompts, "trajectories/tasks")

    def _settle(self, chunk: int, items: Sequence[Item]) -> list[Row]:
        tasks = [self.tasks[item.prompt] for item in items]
        attempts = self._demonstrate(tasks) if self.policy is None else self._sample(tasks, chunk)
        return [self._row(task, made) for task, made in zip(tasks, attempts, strict=True)]

    def _row(self, task: Task, attempts: Sequence[Attempt]) -> Row:
        """The shortest attempt that succeeded, with what became of the others."""
        successes = [attempt for attempt in attempts if attempt.success]
        # an environment that cannot say which attempts succeed shows none that fails
        is_ungraded = all(attempt.success is None for attempt in attempts)
        candidates = successes if self.settings.only_successes and not is_ungraded else successes or attempts
        problem = None if candidates else FAILED
        if task.prompt in self.held_out:
            problem = making.CONTAMINATED
        best = min(candidates or attempts, key=lambda attempt: attempt.turns)
        known = [attempt.success for attempt in attempts if attempt.success is not None]
        return {
            "prompt": best.prompt,
            "completion": best.completion,
            "learn_from": len(to_conversation(task.prompt).messages),
            "task": task.prompt,
            "category": str(task.facts.get("category", "")),
            "turns": best.turns,
            "attempts": len(attempts),
            "success": sum(known) / len(known) if known else None,
            "problem": problem,
            **({} if best.success is None else {"correct_chosen": best.success}),
        }

    def _demonstrate(self, tasks: Sequence[Task]) -> list[list[Attempt]]:
        """The environment's own attempts, graded as the policy's are: even it may run out of patience."""
        assert isinstance(self.environment, Demonstrating)
        shown = [demonstrated(self.environment, task) for task in tasks]
        episodes = [
            Episode(task, attempt.prompt, attempt.completion) for task, attempt in zip(tasks, shown, strict=True)
        ]
        correct = self.environment.grade(episodes).get("correct")
        return [
            [replace(attempt, success=None if correct is None else float(correct[i]))]
            for i, attempt in enumerate(shown)
        ]

    def _sample(self, tasks: Sequence[Task], chunk: int) -> list[list[Attempt]]:
        assert self.policy is not None
        seed = self.run.seed("trajectories/attempts", chunk)
        collected = self.policy.collector.collect(self.policy.policy, tasks, self.settings.attempts, seed)
        episodes = [episode for group in collected for episode in group]
        correct = self.environment.grade(episodes).get("correct")
        if correct is None and self.settings.only_successes:
            raise ConfigError(
                f"the environment of data={self.run.corpus.name} does not say which episodes are right (its grade has "
                "no `correct`); use algorithm.only_successes=false"
            )
        size = self.settings.attempts
        attempts = [
            _sampled(episode, None if correct is None else float(correct[i])) for i, episode in enumerate(episodes)
        ]
        return [attempts[begin : begin + size] for begin in range(0, len(attempts), size)]

    def _write(self, rows: Sequence[Row]) -> dict[str, Any]:
        kept, rejected = making.write_corpus(self.run, "demonstrations", rows, {"teacher": self.settings.teacher})
        metrics = making.counts(rows, kept, rejected)
        # Tasks are the unit: each became one row, or none.
        tasks = np.arange(len(rows))
        metrics["made/attempts"] = float(np.mean([row["attempts"] for row in rows]))
        success = np.array([np.nan if row["success"] is None else row["success"] for row in rows])
        if not np.isnan(success).all():
            metrics["made/success"] = clustered_mean(success, tasks)
        if kept:
            metrics["made/turns"] = clustered_mean(np.array([row["turns"] for row in kept], float), tasks[: len(kept)])
        return metrics | by_category(rows)


def demonstrated(environment: Demonstrating, task: Task) -> Attempt:
    """The environment's own attempt at a task, not yet graded."""
    messages, tools = to_conversation(task.prompt)
    *said, last = environment.demonstration(task)
    turns = sum(message["role"] == "assistant" for message in said) + 1
    return Attempt(render_prompt([*messages, *said], tools), reply_text(last), None, turns)


def _sampled(episode: Episode, success: float | None) -> Attempt:
    # a last turn that was cut has no end to imitate
    return Attempt(episode.prompt, episode.response, success if episode.ended else 0.0, len(episode.turns))


def by_category(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of tasks that became a row, for each category; nothing where tasks have none."""
    categories = sorted({row["category"] for row in rows if row["category"]})
    shares = {}
    for category in categories:
        accepted = np.array([not row["problem"] for row in rows if row["category"] == category], dtype=float)
        shares[f"made/accepted/{category}"] = clustered_rate(accepted, np.arange(len(accepted)))
    return shares


def build(settings: Trajectories, run: Run) -> TrajectoryMaker:
    return TrajectoryMaker(settings, run)
