"""What a harness wants of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.packs.agents.trajectory import AgentTrajectory

OnDone = Callable[[int, AgentTrajectory], None]
"""(position of the assignment, its trajectory), called once for each, as they end."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at a task.

    Attributes:
        tools: of this attempt alone; their state is its own.
        draw: which of several attempts at the same task this is; a model that samples gives each another reply.
        files: of the task, name → content, where they are no fact of it.
    """

    task: Task
    tools: tuple[Tool, ...]
    draw: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@runtime_checkable
class Agent(Protocol):
    """Anything that attempts a task: the agents of the lab, and those of others."""

    def run(self, prompt: str, tools: Sequence[Tool]) -> AgentTrajectory: ...


class BatchAgent(Protocol):
    """An agent that works on many tasks at once, so that a model is asked once for all of their next turns."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides what it does but the tasks, the model's identity included; JSON values."""
        ...

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """A trajectory per assignment, in their order.

        An error of the infrastructure (JudgeUnavailable, BudgetExceeded) is raised after the attempts that ended were
        handed to `on_done`; whatever the agent or the model did wrong is in the trajectory.
        """
        ...
