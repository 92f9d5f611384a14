"""Twelve debugging tasks of our own in three tiers: a description, a program with bugs, hidden assertions.

The prompt has the description, the program and one public example. The assertions and a repaired program are among the
facts, which agents do not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import yaml

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import require
from rlhf_lab.core.tools import Tool
from rlhf_lab.environments.splits import transcript

FOLDER = Path(__file__).parent / "tasks"
TIERS = (1, 2, 3)
QUESTION = """\
{description}
The program below is to do this, and does not. Write the whole program, repaired.

```python
{program}```

This example is run after your program each time:

```python
{example}```"""


class CodeTaskFacts(TypedDict):
    """What is known of a task.

    Attributes:
        id: its name among all tasks.
        category: its tier, `tier_1` to `tier_3`.
        question: what an agent reads.
        program: with the bugs.
        example_code: Python that runs after an agent's program in every round.
        tests: hidden; each is Python that raises where the program is wrong.
        solution: a program that passes them.
    """

    id: str
    category: str
    question: str
    program: str
    example_code: str
    tests: list[str]
    solution: str


@dataclass(frozen=True)
class DebuggingTasks:
    """The tasks of some tiers. All of them are test tasks; they have no tools.

    Args:
        tiers: which of `TIERS`.
    """

    tiers: Sequence[int] = TIERS

    def __post_init__(self) -> None:
        known = bool(self.tiers) and all(tier in TIERS for tier in self.tiers)
        require((known, f"tiers={list(self.tiers)}: write some of {', '.join(map(str, TIERS))}"))

    def tasks(self, split: str) -> list[Task]:
        if split != "test":
            return []
        return [Task(transcript(facts["question"]), facts) for tier in self.tiers for facts in read_tier(tier)]

    def tools(self, task: Task, seed: int) -> list[Tool]:
        return []


@cache
def read_tier(tier: int) -> tuple[CodeTaskFacts, ...]:
    """The tasks of a tier in the order of its file."""
    entries: list[dict[str, Any]] = yaml.safe_load((FOLDER / f"tier_{tier}.yml").read_text(encoding="utf-8"))
    return tuple(_facts(f"tier_{tier}", entry) for entry in entries)


def _facts(category: str, entry: dict[str, Any]) -> CodeTaskFacts:
    shown = {name: entry[name] for name in ("description", "program", "example")}
    return CodeTaskFacts(
        id=entry["id"],
        category=category,
        question=QUESTION.format(**shown),
        program=entry["program"],
        # without a word of it, a run that went well would look like one that did nothing
        example_code=entry["example"] + 'print("The example passes.")\n',
        tests=entry["tests"],
        solution=entry["solution"],
    )
