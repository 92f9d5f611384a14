"""Attempts of agents at tasks: their plan, their identity, and how they are run.

An attempt is identified by its content: the agent with its model, the task with the knowledge and definitions of its
tools, the index of the draw, and the seed of the run. A stored attempt is not run again; see trajectory_log.py. An
infrastructure error stops the run and leaves no record of the attempt, so the same command repeats it. Any other error
in an attempt is its result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.packs.agents.benchmarks.trajectory_log import TrajectoryLog
from rlhf_lab.packs.agents.harness.agent import Assignment, BatchAgent
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import seed_for


@dataclass(frozen=True)
class BenchmarkQuestion:
    """A task of a set.

    Attributes:
        set: name of the set.
        task: the task. Its `metadata` is a `ToolTaskRow`, or that of another benchmark with `id`, `category`,
            `question`.
        make_tools: creates the tools of one attempt from the task and a seed; see `TaskSet.tools`.
        known: JSON value that determines the tools together with the task's metadata, such as digests of files.
        attack: name of the attack in the tools' results, see injections.py; empty without an attack.
        regression: True if the attack succeeded in an earlier run and is tried again.
        read_files: reads files of the task that are not in its metadata: name → content. `known` identifies them.
    """

    set: str
    task: Task
    make_tools: Callable[[Task, int], list[Tool]]
    known: Any = None
    attack: str = ""
    regression: bool = False
    read_files: Callable[[], Mapping[str, bytes]] = dict

    @property
    def id(self) -> str:
        return f"{self.set}/{self.task.metadata['id']}"

    @property
    def category(self) -> str:
        return str(self.task.metadata["category"])

    @property
    def template(self) -> str:
        """Name of the task's template. Estimates are clustered by it; a task without one is a separate cluster."""
        return str(self.task.metadata.get("template") or self.id)

    @property
    def text(self) -> str:
        return str(self.task.metadata["question"])


def spread(questions: Sequence[BenchmarkQuestion], limit: int) -> list[BenchmarkQuestion]:
    """Select `limit` questions at regular intervals from the questions sorted by category; all if `limit` is 0."""
    count = min(limit, len(questions)) if limit else len(questions)
    # Some sets are ordered by category, so the first questions alone would not represent them. Others cycle through
    # the categories, so intervals over the whole set could meet the same category every time.
    positions: dict[str, list[int]] = {}
    for position, question in enumerate(questions):
        positions.setdefault(question.category, []).append(position)
    by_category = list(chain.from_iterable(positions.values()))
    chosen = sorted(by_category[number * len(questions) // count] for number in range(count))
    return [questions[position] for position in chosen]


@dataclass(frozen=True)
class BenchmarkAttempt:
    """One attempt of one agent.

    Attributes:
        agent: name of the agent in this run.
        question: the task and its set.
        draw: index of the attempt at the same task.
        tools: tools of this attempt only, because tools have state.
        key: digest of the attempt's content.
    """

    agent: str
    question: BenchmarkQuestion
    draw: int
    tools: tuple[Tool, ...]
    key: str

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.question.task, self.tools, self.draw, self.question.read_files())


def plan_attempts(
    agent: str, identity: Mapping[str, Any], questions: Sequence[BenchmarkQuestion], draws: int, seed: int
) -> list[BenchmarkAttempt]:
    """Plan `draws` attempts of an agent at each question, question by question.

    The seed of an attempt's tools is derived from the run's seed, the task and the draw. A flaky tool therefore fails
    at the same calls for every agent.
    """
    who = _digest(identity)
    attempts = []
    for question in questions:
        for draw in range(draws):
            tool_seed = seed_for(seed, f"agents/tools/{question.id}", draw)
            tools = tuple(question.make_tools(question.task, tool_seed))
            # The key has the agent's identity instead of its name, so renaming an agent keeps its attempts.
            content = {"task": question_content(question, tools), "draw": draw, "seed": seed}
            key = _digest({"agent": who, **content})
            attempts.append(BenchmarkAttempt(agent, question, draw, tools, key))
    return attempts


def question_content(question: BenchmarkQuestion, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return everything that an agent can observe of a task, and the data that its answer is compared with, as JSON."""
    return {
        "set": question.set,
        "prompt": question.task.prompt,
        # The old name of the metadata stays, because this content is part of the keys of stored attempts.
        "facts": dict(question.task.metadata),
        "tools": [tool.definition for tool in tools],
        "known": question.known,
        "attack": question.attack,
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def run_attempts(agent: BatchAgent, attempts: Sequence[BenchmarkAttempt], log: TrajectoryLog) -> list[AgentTrajectory]:
    """Return the trajectory of every attempt, in order. Attempts that are not in the log are run, and stored as they
    finish.

    Infrastructure errors (JudgeUnavailable, BudgetExceeded) are raised; attempts that finished before them are stored.
    """
    distinct = {attempt.key: attempt for attempt in attempts}  # a regression case may equal one of the attacks
    missing = [attempt for key, attempt in distinct.items() if key not in log]

    def keep(position: int, trajectory: AgentTrajectory) -> None:
        attempt = missing[position]
        log.add(attempt.key, _about(attempt), trajectory)

    if missing:
        # All missing attempts together, so that the model gets large batches.
        agent.run_many([attempt.assignment for attempt in missing], keep)
    # Read from the log, so that new and reused attempts have the same form.
    return [log.trajectory(attempt.key) for attempt in attempts]


def _about(attempt: BenchmarkAttempt) -> dict[str, Any]:
    """Return the description of an attempt that trajectories.jsonl stores next to the trajectory."""
    question = attempt.question
    metadata = question.task.metadata
    return {
        "agent": attempt.agent,
        "set": question.set,
        "task": str(metadata["id"]),
        "category": question.category,
        "template": question.template,
        "attack": question.attack,
        "draw": attempt.draw,
        "question": question.text,
        "expected": {"answer": metadata.get("answer"), "calls": list(metadata.get("calls", ()))},
        "tools": [tool.name for tool in attempt.tools],
    }
