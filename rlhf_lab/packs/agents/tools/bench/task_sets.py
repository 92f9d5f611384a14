"""AgentBench-Mini as it is written, and sets of siblings drawn from its templates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import require
from rlhf_lab.core.files import fingerprint
from rlhf_lab.core.tools import Tool
from rlhf_lab.environments.splits import SPLITS, transcript
from rlhf_lab.packs.agents.tools.bench.fixtures import fixture_tools
from rlhf_lab.packs.agents.tools.bench.templates import CATEGORIES, Template, all_templates
from rlhf_lab.packs.agents.tools.task_set import ToolTaskFacts

VERSION = 1
"""Increased whenever the same files give other tools: other messages, another search; part of the fingerprint."""
MINI_CATEGORIES = ("tool_use", "multi_step", "failure_recovery")


class _BenchTasks(ABC):
    """What both sets share: tools, and the fingerprint."""

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]: ...

    def tools(self, task: Task, seed: int) -> list[Tool]:
        """Tools of one attempt; the seed decides when a busy tool is busy."""
        return fixture_tools(task.facts["fixture"], seed)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of every task of both splits, fixtures included."""
        return fingerprint([VERSION, [[dict(task.facts) for task in self.tasks(split)] for split in SPLITS]])


@dataclass(frozen=True)
class AgentBenchMini(_BenchTasks):
    """The tasks that were written by hand. All of them are test tasks.

    Args:
        categories: which of `CATEGORIES`; the first three are the 36 tasks of AgentBench-Mini.
    """

    categories: Sequence[str] = MINI_CATEGORIES

    def __post_init__(self) -> None:
        require_categories(self.categories)

    def tasks(self, split: str) -> list[Task]:
        templates = templates_of(self.categories) if split == "test" else []
        return [as_task(template.canonical()) for template in templates]


@dataclass(frozen=True)
class Generated(_BenchTasks):
    """Siblings of the hand-written tasks: other names, numbers and relations, and the answers that follow from them.

    The names of `train` and `test` are never the same. Siblings of one template are not independent: compare agents
    clustered by `facts["template"]`.

    Args:
        per_task: siblings of each template in each split.
        seed: of the draws.
        categories: which of `CATEGORIES`.
    """

    per_task: int = 10
    seed: int = 0
    categories: Sequence[str] = CATEGORIES

    def __post_init__(self) -> None:
        require((self.per_task >= 1, f"per_task={self.per_task}: write at least 1"))
        require_categories(self.categories)

    def tasks(self, split: str) -> list[Task]:
        return [
            as_task(facts)
            for template in templates_of(self.categories)
            for facts in template.siblings(self.per_task, self.seed, split)
        ]


def as_task(facts: ToolTaskFacts) -> Task:
    return Task(transcript(facts["question"]), facts)


def templates_of(categories: Sequence[str]) -> list[Template]:
    return [template for template in all_templates() if template.category in categories]


def require_categories(categories: Sequence[str]) -> None:
    unknown = [category for category in categories if category not in CATEGORIES]
    require(
        (bool(categories) and not unknown, f"categories={list(categories)}: write some of {', '.join(CATEGORIES)}"),
    )
