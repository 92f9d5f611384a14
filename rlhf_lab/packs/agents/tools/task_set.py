"""Metadata of tasks with tools, and the interface of task sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, Protocol, TypedDict, runtime_checkable

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool


class ExpectedCall(TypedDict):
    """A call that solves a part of a task.

    Keys:
        name: name of the tool.
        arguments: arguments of the call.
        result: relevant part of the result, for tools whose arguments can express the same request in many ways (SQL,
            an expression, key words). Any call of the tool whose result contains this text counts as the same call.
        optional: True if the task can also be solved without the call; neither making nor omitting it lowers a score.
    """

    name: str
    arguments: dict[str, Any]
    result: NotRequired[str]
    optional: NotRequired[bool]


class ToolTaskRow(TypedDict):
    """`Task.metadata` of a task with tools. `Task.prompt` is the question as a transcript.

    Keys:
        id: id, unique in its set.
        category: tool_use, multi_step, failure_recovery, long_horizon, flaky, ambiguous, conflicting, …
        question: the question.
        answer: the right answer; for an impossible task, the name of the missing thing.
        scorer: comparison of answers: exact, numeric, token_f1 or refusal.
        calls: a shortest sequence of calls to the answer.
        any_order: True if these calls may be made in any order.
        template: origin of a sampled task; tasks of one template are not independent.
        tolerance: maximum distance of a numeric answer from the right one, in its unit.
        missing: name of the missing thing, if an impossible task has another answer; a refusal may name either.
        unit: unit of a numeric answer; an answer in another unit of the same quantity is converted.
        fixture: content of the tools in the form of the task set; it is hidden from agents.
    """

    id: str
    category: str
    question: str
    answer: str
    scorer: str
    calls: list[ExpectedCall]
    any_order: NotRequired[bool]
    # Keys that only some tasks have.
    template: NotRequired[str]
    missing: NotRequired[str]
    tolerance: NotRequired[float]
    unit: NotRequired[str]
    fixture: NotRequired[dict[str, Any]]


@runtime_checkable
class TaskSet(Protocol):
    """Interface of a set of tasks, which also creates the tools for each attempt at a task."""

    def tasks(self, split: str) -> Sequence[Task]: ...

    def tools(self, task: Task, seed: int) -> list[Tool]:
        """Create the tools of one attempt; attempts share no state. The seed determines the tools' randomness."""
        ...
