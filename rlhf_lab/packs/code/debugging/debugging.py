"""Twelve debugging tasks in three tiers: a description, a program with bugs, hidden assertions.

The prompt contains the description, the program and one public example. The assertions and a repaired program are in
the metadata, which agents do not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import require
from rlhf_lab.core.tools import Tool
from rlhf_lab.core.yaml_files import read_yaml
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


class CodeTaskRow(TypedDict):
    """Metadata of a task.

    Attributes:
        id: unique name of the task.
        category: tier of the task, `tier_1` to `tier_3`.
        question: prompt of the agent.
        program: program with the bugs.
        example_code: Python code that runs after the agent's program in each round.
        tests: hidden tests; each is Python code that raises if the program is wrong.
        solution: program that passes the tests.
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
    """Debugging tasks of the selected tiers. All are test tasks, and they have no tools.

    Attributes:
        tiers: selected tiers, a subset of `TIERS`.
    """

    tiers: Sequence[int] = TIERS

    def __post_init__(self) -> None:
        known = bool(self.tiers) and all(tier in TIERS for tier in self.tiers)
        listed = ", ".join(map(str, TIERS))
        require((known, f"tiers={list(self.tiers)} must be one or more of {listed}"))

    def tasks(self, split: str) -> list[Task]:
        if split != "test":
            return []
        tasks = []
        for tier in self.tiers:
            tasks += [Task(transcript(metadata["question"]), metadata) for metadata in read_tier(tier)]
        return tasks

    def tools(self, task: Task, seed: int) -> list[Tool]:
        return []


@cache
def read_tier(tier: int) -> tuple[CodeTaskRow, ...]:
    """Return the tasks of a tier in the order of its file."""
    entries: list[dict[str, Any]] = read_yaml(FOLDER / f"tier_{tier}.yml")
    return tuple(_metadata(f"tier_{tier}", entry) for entry in entries)


def _metadata(category: str, entry: dict[str, Any]) -> CodeTaskRow:
    shown = {name: entry[name] for name in ("description", "program", "example")}
    return CodeTaskRow(
        id=entry["id"],
        category=category,
        question=QUESTION.format(**shown),
        program=entry["program"],
        # without this output, a successful run would look like a program that does nothing
        example_code=entry["example"] + 'print("The example passes.")\n',
        tests=entry["tests"],
        solution=entry["solution"],
    )
