"""Tracks one stage: starts its tracker, passes it every logged row, ends it. A failing tracker never stops the stage.

A tracker that fails is noted once and not used again. After a kill, the rows that a stage logged since its checkpoint
are cut off metrics.jsonl and logged a second time. A tracker that still has them does not get them twice; one that
starts with nothing gets the kept rows first. Either way it shows every row once. The repeated rows hold the same
numbers, because a resumed stage repeats its steps exactly (on-policy stages of `engine=trl` draw new samples instead).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry, root
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import MissingDependency
from rlhf_lab.core.files import read_rows, write_text
from rlhf_lab.core.redaction import redacted
from rlhf_lab.trackers.settings import Shared
from rlhf_lab.trackers.tracker import Outcome, Subject, Tracker

IDENTITY = "tracker.txt"
"""File of the run directory: the tracker and the id of the tracked run. It goes when a stage starts over or its tracker
fails: the next attempt is a new tracked run."""


class Tracking:
    """A stage's side of its tracker: keeps failures away from the stage and repeated rows away from the tracker.

    Args:
        identity: file that is deleted when the tracker fails.
        note: takes a remark for the person who reads the result.
    """

    def __init__(self, kind: str = "files", identity: Path | None = None, note: Callable[[str], None] = console.print):
        self.kind = kind
        self._identity = identity
        self._note = note
        self._tracker: Tracker | None = None
        self._rows_to_skip = 0

    def start(self, build: Callable[[], Tracker], kept: list[dict[str, Any]], repeated: int) -> None:
        """Start the tracked run.

        Args:
            kept: rows of an earlier attempt that stay.
            repeated: how many rows it logged after them.

        Raises MissingDependency when the tracker is not installed; anything else is noted.
        """

        def start_and_catch_up() -> None:
            self._tracker = build()
            if self._tracker.continues:
                self._rows_to_skip = repeated
                return
            self._rows_to_skip = 0
            for row in kept:
                self._tracker.log(_without_nulls(row))

        self._run_safely(start_and_catch_up)

    def log(self, row: Mapping[str, float | None]) -> None:
        """Pass one row of metrics.jsonl to the tracker."""
        tracker = self._tracker
        if tracker is None:
            return
        if self._rows_to_skip:  # the tracker has this row from the attempt before
            self._rows_to_skip -= 1
        else:
            self._run_safely(lambda: tracker.log(_without_nulls(row)))

    def finish(self, status: str, outcome: Callable[[], Outcome]) -> None:
        """End the tracked run. The stage's result is written by now, so a failure is printed and not noted in it."""
        self._note = console.print
        tracker = self._tracker
        if tracker is not None:
            self._run_safely(lambda: tracker.finish(status, outcome()))
            self._tracker = None

    def _run_safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except MissingDependency:
            raise
        except Exception as error:  # a service or a disk that is gone must not take the stage with it
            self._tracker = None
            if self._identity:
                self._identity.unlink(missing_ok=True)
            reason = str(error).partition("\n")[0]
            self._note(
                f"tracker={self.kind} failed and is switched off; metrics.jsonl has everything "
                f"({type(error).__name__}: {reason})"
            )


def track(checked: root.Config, recipe: str, folder: Path, log_size: int, note: Callable[[str], None]) -> Tracking:
    """Start tracking a stage as its config asks. Only the main process does.

    Args:
        folder: the run directory.
        log_size: bytes of metrics.jsonl that stay.
        note: see `Tracking`.
    """
    settings = checked.tracker
    if not isinstance(settings, Shared) or not ranks.is_main():
        return Tracking()
    kind = registry.kind_of("tracker", settings)
    identity_file = folder / IDENTITY
    words = identity_file.read_text(encoding="utf-8").split() if identity_file.exists() else []
    resumed = len(words) == 2 and words[0] == kind  # another tracker than before starts a tracked run of its own
    identity = words[1] if resumed else f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    tracking = Tracking(kind, identity_file, note)
    rows, ends = read_rows(folder / "metrics.jsonl")
    kept = [row for row, end in zip(rows, ends, strict=True) if end <= log_size]
    subject = _make_subject(checked, settings, recipe, identity, resumed)
    write_text(identity_file, f"{kind} {identity}\n")
    tracking.start(lambda: registry.build("tracker", settings, subject), kept=kept, repeated=len(rows) - len(kept))
    return tracking


def _make_subject(checked: root.Config, settings: Shared, recipe: str, identity: str, resumed: bool) -> Subject:
    config = redacted(root.to_values(checked))
    del config["tracker"]
    swept = redacted(settings.swept)  # the compared setting first
    labels = [f"{key}={value}" for key, value in swept.items()]
    return Subject(
        id=identity,
        name=" ".join([recipe, *labels]),
        recipe=recipe,
        group=settings.group or recipe,
        tags=[*labels, *redacted(settings.tags)],
        config=config | {"recipe": recipe, "level": labels[0] if labels else recipe, "swept": swept},
        question=checked.question,
        folder=Path(checked.outputs).resolve(),
        resumed=resumed,
    )


def _without_nulls(row: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in row.items() if value is not None}
