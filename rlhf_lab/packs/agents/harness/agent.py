"""The interface of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.packs.agents.trajectory import AgentTrajectory

REFERENCE = " (reference)"
"""Suffix of the name of an agent that runs with the model of `needs.reference`."""

# A callback instead of a return value, so that finished attempts are stored before an error stops the rest.
OnDone = Callable[[int, AgentTrajectory], None]
"""Callback with (index of the assignment, its trajectory), called when an attempt finishes."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at a task.

    Attributes:
        task: the task.
        tools: tools of this attempt. They are not shared, because tools have state.
        draw: index of the attempt at the same task; a sampling model answers each attempt anew.
        files: files of the task that are not in its metadata: name → content.
    """

    task: Task
    tools: tuple[Tool, ...]
    draw: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@runtime_checkable
class Agent(Protocol):
    """Any object that attempts a task: built-in agents and those of users."""

    def run(self, prompt: str, tools: Sequence[Tool]) -> AgentTrajectory: ...


class BatchAgent(Protocol):
    """An agent that works on many tasks at once, so that the model gets the requests of all tasks in one batch."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Settings of the agent and identity of its model, as JSON values: everything except the task that determines
        its behaviour.
        """
        ...

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """Return one trajectory per assignment, in the same order.

        `on_done` is called for each attempt that finishes. Infrastructure errors (JudgeUnavailable, BudgetExceeded) are
        raised after these calls. Errors of the agent or the model are recorded in its trajectory.
        """
        ...
