"""Protocol of a tracker, and its inputs. A run is recorded in its metrics.jsonl; nothing is ever read from a tracker.

The module of a tracker has a function `build(settings, subject)`, which starts the tracked run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

# Trackers get plain values only, so that they depend on nothing else of the package.
Row = Mapping[str, float]
"""One row of metrics.jsonl without its nulls: `step`, `time` (seconds) and metrics."""


@dataclass(frozen=True)
class TrackedStage:
    """The tracked stage, as plain values.

    Attributes:
        id: identifier, the same for all attempts that continue each other; contains only [a-z0-9_-].
        name: name for display; several runs may have the same.
        group: name of the study, or of the recipe on the command line.
        tags: swept settings as `setting=value`, then the user's own tags.
        config: the resolved settings without secrets; `level` is the first swept setting, else the recipe.
        resumed: True if an earlier attempt has the same id.
    """

    id: str
    name: str
    recipe: str
    group: str
    tags: list[str]
    config: dict[str, Any]
    question: str
    directory: Path
    resumed: bool


@dataclass(frozen=True)
class TrackedTable:
    """A table with named columns and rows of plain values."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class StageOutcome:
    """Results of a stage.

    Attributes:
        final: final metrics of the stage, or else of its last policy: name → number.
        tables: `policies`, with every metric of every policy, n and interval; and `samples`, with responses side by
            side.
    """

    final: dict[str, float] = field(default_factory=dict)
    tables: dict[str, TrackedTable] = field(default_factory=dict)


class Tracker(Protocol):
    """A tracked run that has been started.

    Attributes:
        continues: True if the tracker still has the rows of an earlier attempt; otherwise they are logged again at the
            start.
    """

    continues: bool

    def log(self, row: Row) -> None:
        """Log one row. Steps need not increase."""

    def finish(self, status: str, outcome: StageOutcome) -> None:
        """Finish the tracked run. `status` is completed, failed or interrupted."""
