"""What a task with tools knows of itself, whichever set it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, Protocol, TypedDict, runtime_checkable

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool


class ExpectedCall(TypedDict):
    """A call that solves a part of a task.

    Keys:
        result: what counts of its result, where its arguments can say the same in many ways (SQL, an expression, key
            words): any call of the tool whose result has this text in it is the same call.
        optional: whether the task can also be solved without it; neither making nor leaving out such a call is a fault.
    """

    name: str
    arguments: dict[str, Any]
    result: NotRequired[str]
    optional: NotRequired[bool]


class ToolTaskFacts(TypedDict):
    """`Task.facts` of a task with tools; `Task.prompt` is the question as a transcript.

    Keys:
        id: unique in its set.
        category: tool_use, multi_step, failure_recovery, long_horizon, flaky, ambiguous, conflicting, …
        question: as it is asked.
        answer: the right answer; of a task that cannot be done, what is missing.
        scorer: how an answer is compared with it: exact, numeric, token_f1 or refusal.
        calls: a shortest way to the answer, in order.
        any_order: whether these calls may come in any order.
        template: of a task that was drawn, what it was drawn from: tasks of one template are not independent.
        tolerance: of a numeric answer: how far it may lie from the right one, in its unit.
        unit: of a numeric answer; an answer in another unit of the same quantity is converted.
        fixture: what its tools hold, as the task set writes it; an agent never sees it.
    """

    id: str
    category: str
    question: str
    answer: str
    scorer: str
    calls: list[ExpectedCall]
    any_order: NotRequired[bool]
    template: NotRequired[str]
    tolerance: NotRequired[float]
    unit: NotRequired[str]
    fixture: NotRequired[dict[str, Any]]


@runtime_checkable
class TaskSet(Protocol):
    """Tasks, and the tools that each attempt at one gets."""

    def tasks(self, split: str) -> Sequence[Task]: ...

    def tools(self, task: Task, seed: int) -> list[Tool]:
        """Tools of one attempt, with a state of its own. Whatever is random in them follows from the seed."""
        ...
