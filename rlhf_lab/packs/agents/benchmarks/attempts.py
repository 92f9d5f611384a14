"""Attempts of agents at tasks: which there are, what makes two of them the same, and how they are run.

An attempt is known by its content: who attempts (the agent with its model), what (the task, what its tools know and
say of themselves), which draw, and the seed of the run. What is done and kept is not done again; see
trajectory_log.py. An error of the infrastructure ends the run and leaves no trace of the attempt it hit, so that the
same command makes up for it. Whatever else happens in an attempt is its result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.packs.agents.benchmarks.trajectory_log import TrajectoryLog
from rlhf_lab.packs.agents.harness.agent import Assignment, BatchAgent
from rlhf_lab.packs.agents.tools.task_set import TaskSet
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import seed_for


@dataclass(frozen=True)
class Question:
    """A task of a set.

    Attributes:
        set: name of the set.
        task: its `facts` are `ToolTaskFacts`, or those of another benchmark with `id`, `category`, `question`.
        tasks: the set itself, which makes the tools of each attempt.
        known: what decides the tools besides the task's facts, such as the content of files; a JSON value.
        read_files: reads the files that come with the task, name → content, where they are no fact of it; `known` has
            what stands for them.
        attack: name of what its tools say besides, see injections.py; empty where they are as they should be.
        regression: whether that attack succeeded in an earlier run and is tried again for it.
    """

    set: str
    task: Task
    tasks: TaskSet
    known: Any = None
    attack: str = ""
    regression: bool = False
    read_files: Callable[[], Mapping[str, bytes]] = dict

    @property
    def id(self) -> str:
        return f"{self.set}/{self.task.facts['id']}"

    @property
    def category(self) -> str:
        return str(self.task.facts["category"])

    @property
    def template(self) -> str:
        """What tasks that are alike share: estimates are clustered by it. A task without one is alone."""
        return str(self.task.facts.get("template") or self.id)

    @property
    def text(self) -> str:
        return str(self.task.facts["question"])


def spread(questions: Sequence[Question], limit: int) -> list[Question]:
    """At most `limit` questions at regular intervals; all for 0."""
    count = min(limit, len(questions)) if limit else len(questions)
    return [questions[number * len(questions) // count] for number in range(count)]


@dataclass(frozen=True)
class Attempt:
    """One attempt of one agent.

    Attributes:
        agent: name of the agent in this run.
        tools: of this attempt alone.
        key: digest of its content.
    """

    agent: str
    question: Question
    draw: int
    tools: tuple[Tool, ...]
    key: str

    @property
    def assignment(self) -> Assignment:
        return Assignment(self.question.task, self.tools, self.draw, self.question.read_files())


def plan_attempts(
    agent: str, identity: Mapping[str, Any], questions: Sequence[Question], draws: int, seed: int
) -> list[Attempt]:
    """`draws` attempts of an agent at each question, question by question.

    The seed of an attempt's tools follows from the run's seed, the task and the draw: a tool that fails now and then
    fails at the same calls for every agent.
    """
    who = _digest(identity)
    attempts = []
    for question in questions:
        for draw in range(draws):
            tools = tuple(question.tasks.tools(question.task, seed_for(seed, f"agents/tools/{question.id}", draw)))
            content = {"task": question_content(question, tools), "draw": draw, "seed": seed}
            key = _digest({"agent": who, **content})
            attempts.append(Attempt(agent, question, draw, tools, key))
    return attempts


def question_content(question: Question, tools: Sequence[Tool]) -> dict[str, Any]:
    """Everything that an agent can find out about a task, and what its answer is compared with; JSON values."""
    return {
        "set": question.set,
        "prompt": question.task.prompt,
        "facts": dict(question.task.facts),
        "tools": [tool.definition for tool in tools],
        "known": question.known,
        "attack": question.attack,
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def run_attempts(agent: BatchAgent, attempts: Sequence[Attempt], log: TrajectoryLog) -> list[AgentTrajectory]:
    """The trajectory of every attempt, in order; those that the log lacks are made now and kept as they end.

    Raises what the infrastructure raised (JudgeUnavailable, BudgetExceeded); the attempts that ended are kept.
    """
    distinct = {attempt.key: attempt for attempt in attempts}  # a regression case may be among the attacks anyway
    missing = [attempt for key, attempt in distinct.items() if key not in log]

    def keep(position: int, trajectory: AgentTrajectory) -> None:
        attempt = missing[position]
        log.add(attempt.key, _about(attempt), trajectory)

    if missing:
        agent.run_many([attempt.assignment for attempt in missing], keep)
    return [log.trajectory(attempt.key) for attempt in attempts]


def _about(attempt: Attempt) -> dict[str, Any]:
    """What a reader of trajectories.jsonl wants to know of an attempt besides what was done."""
    question = attempt.question
    facts = question.task.facts
    return {
        "agent": attempt.agent,
        "set": question.set,
        "task": str(facts["id"]),
        "category": question.category,
        "template": question.template,
        "attack": question.attack,
        "draw": attempt.draw,
        "question": question.text,
        "expected": {"answer": facts.get("answer"), "calls": list(facts.get("calls", ()))},
        "tools": [tool.name for tool in attempt.tools],
    }
