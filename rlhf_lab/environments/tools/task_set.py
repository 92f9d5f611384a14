"""What a task with tools knows of itself, whichever set it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, Protocol, TypedDict

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool


class ExpectedCall(TypedDict):
    """A call that solves a part of a task."""

    name: str
    arguments: dict[str, Any]


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
    """

    id: str
    category: str
    question: str
    answer: str
    scorer: str
    calls: list[ExpectedCall]
    any_order: NotRequired[bool]


class TaskSet(Protocol):
    """Tasks, and the tools that each attempt at one gets."""

    def tasks(self, split: str) -> Sequence[Task]: ...

    def tools(self, task: Task, seed: int) -> list[Tool]:
        """Tools of one attempt, with a state of its own. Whatever is random in them follows from the seed."""
        ...
