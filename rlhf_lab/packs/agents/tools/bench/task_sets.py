"""Task sets of AgentBench-Mini: the hand-written tasks, and siblings sampled from their templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import require
from rlhf_lab.core.tools import Tool
from rlhf_lab.environments.splits import transcript
from rlhf_lab.packs.agents.tools.bench.fixtures import fixture_tools
from rlhf_lab.packs.agents.tools.bench.templates import CATEGORIES, Template, all_templates
from rlhf_lab.packs.agents.tools.task_set import ToolTaskRow

MINI_CATEGORIES = ("tool_use", "multi_step", "failure_recovery")


class _BenchTasks:
    """Common base of both sets."""

    def tools(self, task: Task, seed: int) -> list[Tool]:
        """Return the tools of one attempt; the seed decides when a busy tool is busy."""
        return fixture_tools(task.metadata["fixture"], seed)


@dataclass(frozen=True)
class AgentBenchMini(_BenchTasks):
    """The hand-written tasks. All of them belong to the test split.

    Args:
        categories: categories of `CATEGORIES`; the first three are the 36 tasks of AgentBench-Mini.
    """

    categories: Sequence[str] = MINI_CATEGORIES

    def __post_init__(self) -> None:
        require_categories(self.categories)

    def tasks(self, split: str) -> list[Task]:
        # Nothing is trained on the hand-written tasks.
        templates = templates_of(self.categories) if split == "test" else []
        return [as_task(template.canonical()) for template in templates]


@dataclass(frozen=True)
class Generated(_BenchTasks):
    """Siblings of the hand-written tasks, with other names, numbers and relations, and the resulting answers.

    The names of `train` and `test` are disjoint. Siblings of one template are not independent: compare agents clustered
    by `metadata["template"]`.

    Args:
        per_task: number of siblings of each template in each split.
        seed: seed of the samples.
        categories: categories of `CATEGORIES`.
    """

    per_task: int = 10
    seed: int = 0
    categories: Sequence[str] = CATEGORIES

    def __post_init__(self) -> None:
        require((self.per_task >= 1, f"per_task={self.per_task}: set it to at least 1"))
        require_categories(self.categories)

    def tasks(self, split: str) -> list[Task]:
        return [
            as_task(metadata)
            for template in templates_of(self.categories)
            for metadata in template.siblings(self.per_task, self.seed, split)
        ]


def as_task(metadata: ToolTaskRow) -> Task:
    # The prompt is the question alone: instructions depend on the agent.
    return Task(transcript(metadata["question"]), metadata)


def templates_of(categories: Sequence[str]) -> list[Template]:
    return [template for template in all_templates() if template.category in categories]


def require_categories(categories: Sequence[str]) -> None:
    unknown = [category for category in categories if category not in CATEGORIES]
    require((bool(categories) and not unknown, f"categories={list(categories)}: choose from {', '.join(CATEGORIES)}"))
