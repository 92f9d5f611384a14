"""The protocol of a tracker, and what it receives. The record of a run is its metrics.jsonl: nothing reads a tracker.

A module of a tracker has `build(settings, subject)`, which starts the tracked run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, float]
"""One line of metrics.jsonl without its nulls: `step`, `time` (seconds) and metrics."""


@dataclass(frozen=True)
class Subject:
    """The stage that is tracked, in plain values.

    Attributes:
        id: the same for all attempts that continue each other; [a-z0-9_-] only.
        name: for people; several runs may have the same.
        recipe: of this stage.
        group: name of the study, or of the recipe on the command line.
        tags: swept settings as `setting=value`, then the user's own.
        config: the resolved settings without secrets; `level` is the first swept setting, else the recipe.
        question: what the recipe answers.
        folder: where trackers keep their files.
        resumed: whether an earlier attempt has the same id.
    """

    id: str
    name: str
    recipe: str
    group: str
    tags: list[str]
    config: dict[str, Any]
    question: str
    folder: Path
    resumed: bool


@dataclass(frozen=True)
class Table:
    """Named columns and rows of plain values."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Outcome:
    """What a stage found.

    Attributes:
        final: metric of the stage, or else of its last policy → number.
        tables: `policies`, every metric of every policy with n and interval, and `samples`, replies side by side.
    """

    final: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)


class Tracker(Protocol):
    """A tracked run that has been started.

    Attributes:
        continues: whether the rows of an earlier attempt are there already; else they are logged again, first thing.
    """

    continues: bool

    def log(self, row: Row) -> None:
        """Add one row. Steps need not increase."""

    def finish(self, status: str, outcome: Outcome) -> None:
        """End the tracked run. `status` is completed, failed or interrupted."""
