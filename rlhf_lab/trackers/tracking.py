"""Tracking of one stage: start its tracker, pass it every logged row, finish it. A failing tracker never stops a stage.

A failure of a tracker is noted once, and the tracker is not used again. After a kill, the rows that a stage logged
since its checkpoint are removed from metrics.jsonl and logged a second time. A tracker that still has them does not
receive them again; a tracker that starts empty receives the remaining rows first. In both cases it shows every row
once. The repeated rows have the same numbers, because a resumed stage repeats its steps exactly. Only on-policy stages
of `engine=trl` sample anew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry, root
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import MissingDependency
from rlhf_lab.core.files import read_rows, write_text
from rlhf_lab.core.redaction import redacted
from rlhf_lab.trackers.settings import Shared
from rlhf_lab.trackers.tracker import StageOutcome, TrackedStage, Tracker

TRACKED = "tracked.txt"
"""File of the run directory with one line for each tracked run that shows the completed stage; see `_record_of`."""
IDENTITY = "tracker.txt"
"""File of the run directory with the tracker and the id of the tracked run. It is deleted if a stage starts over or its
tracker fails, so that the next attempt gets a new tracked run."""


class Tracking:
    """Interface between a stage and its tracker: handles failures of the tracker, and skips rows that it already has.

    Args:
        identity: file that is deleted if the tracker fails.
        note: function that records a note for readers of the result.
        record: line that is added to `TRACKED` in the directory of `identity` after a completed stage was tracked.
    """

    def __init__(
        self,
        kind: str = "files",
        identity: Path | None = None,
        note: Callable[[str], None] = console.inform,
        record: str = "",
    ):
        self.kind = kind
        self._identity = identity
        self._record = record
        self._note = note
        self._tracker: Tracker | None = None
        self.failed = False  # True switches the tracker off
        self._rows_to_skip = 0  # a resumed tracked run already has them

    def start(self, build: Callable[[], Tracker], kept: list[dict[str, Any]], repeated: int) -> None:
        """Start the tracked run.

        Args:
            kept: rows of an earlier attempt that remain valid.
            repeated: number of rows that it logged after them.

        Raises MissingDependency if the tracker is not installed; any other error is noted.
        """

        def start_and_catch_up() -> None:
            self._tracker = build()
            if self._tracker.continues:
                self._rows_to_skip = repeated
                return
            for row in kept:
                self._tracker.log(_without_nulls(row))

        self._run_safely(start_and_catch_up)

    def log(self, row: Mapping[str, float | None]) -> None:
        """Pass one row of metrics.jsonl to the tracker."""
        tracker = self._tracker
        if tracker is None:
            return
        if self._rows_to_skip:
            self._rows_to_skip -= 1
        else:
            self._run_safely(lambda: tracker.log(_without_nulls(row)))

    def finish(self, status: str, outcome: Callable[[], StageOutcome]) -> None:
        """Finish the tracked run. The stage's result is already written, so a failure is printed instead of noted
        there.
        """
        self._note = console.inform
        tracker = self._tracker
        if tracker is not None:
            self._run_safely(lambda: tracker.finish(status, outcome()))
            # Only completed stages are recorded: an interrupted one continues its tracked run.
            if self._identity and status == "completed" and not self.failed:
                _add_record(self._identity.with_name(TRACKED), self._record)
            self._tracker = None

    def _run_safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except MissingDependency:
            raise
        except Exception as error:  # an unavailable service or a full disk must not stop the stage
            self._tracker = None
            self.failed = True
            # Without this file, the next attempt starts a new tracked run instead of continuing the broken one.
            if self._identity:
                self._identity.unlink(missing_ok=True)
            # only the first line, because the messages of some clients are long
            reason = str(error).partition("\n")[0]
            self._note(
                f"tracker={self.kind} failed and is switched off; metrics.jsonl contains all metrics "
                f"({type(error).__name__}: {reason})"
            )


def track(checked: root.Config, recipe: str, directory: Path, log_size: int, note: Callable[[str], None]) -> Tracking:
    """Start tracking a stage with the tracker in its config. Only the main process tracks.

    Args:
        checked, recipe, directory: the config, the name of the recipe, and the run directory.
        log_size: number of bytes of metrics.jsonl that remain valid.
    """
    settings = checked.tracker
    if not isinstance(settings, Shared) or not ranks.is_main():
        return Tracking()
    kind = registry.kind_of("tracker", settings)
    identity_file = directory / IDENTITY
    words = identity_file.read_text(encoding="utf-8").split() if identity_file.exists() else []
    resumed = len(words) == 2 and words[0] == kind  # a change of the tracker starts a new tracked run
    identity = words[1] if resumed else f"{directory.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    tracking = Tracking(kind, identity_file, note, _record_of(kind, settings, recipe))
    rows, ends = read_rows(directory / "metrics.jsonl")
    # The resumed stage logs the rows after its checkpoint again.
    kept = [row for row, end in zip(rows, ends, strict=True) if end <= log_size]
    subject = _make_subject(root.to_values(checked), settings, recipe, identity, resumed)
    # Written before the tracker starts, so that an attempt after a kill finds the id.
    write_text(identity_file, f"{kind} {identity}\n")
    tracking.start(lambda: registry.build("tracker", settings, subject), kept, repeated=len(rows) - len(kept))
    return tracking


def track_stored(
    values: Mapping[str, Any],
    settings: object,
    recipe: str,
    directory: Path,
    status: str,
    outcome: Callable[[], StageOutcome],
) -> bool:
    """Track a stage that is in the store, with every row that it has logged.

    Return False if nothing was tracked. The reason is `tracker=files`, a tracker that failed, or one that already shows
    the stage in the same project and group and with the same swept settings. An incomplete stage is shown as it is now:
    once it has more rows or another status, it is tracked as another run.

    Args:
        values: the run's settings as plain values.
        recipe, directory: name of the recipe, and the run directory.
        status, outcome: see `Tracking.finish`.
    """
    if not isinstance(settings, Shared) or not ranks.is_main():
        return False
    kind = registry.kind_of("tracker", settings)
    rows, _ = read_rows(directory / "metrics.jsonl")
    state: dict[str, str | int] = {} if status == "completed" else {"status": status, "rows": len(rows)}
    record = _record_of(kind, settings, recipe, **state)
    records = directory / TRACKED
    if records.exists() and record in records.read_text(encoding="utf-8").splitlines():
        return False
    # The id depends on project, group and swept settings, so one stored stage can be shown in several studies.
    identity = f"{directory.name}-{sha256(record.encode()).hexdigest()[:8]}"
    subject = _make_subject(values, settings, recipe, identity, resumed=False)
    tracking = Tracking(kind)
    tracking.start(lambda: registry.build("tracker", settings, subject), kept=[], repeated=0)
    for row in rows:
        tracking.log(row)
    tracking.finish(status, outcome)
    if tracking.failed:
        return False
    _add_record(records, record)
    return True


def _record_of(kind: str, settings: Shared, recipe: str, **state: str | int) -> str:
    """Return the line of `TRACKED` for a tracked run: the values that determine where and how it is displayed.

    `state` is that of an incomplete stage.
    """
    group, swept = settings.group or recipe, redacted(settings.swept)
    return json.dumps({"tracker": kind, "project": settings.project, "group": group, "swept": swept, **state})


def _add_record(file: Path, record: str) -> None:
    """Add a line to `TRACKED`. A store that is not writable is no error."""
    with suppress(OSError), file.open("a", encoding="utf-8") as lines:
        lines.write(record + "\n")


def _make_subject(
    values: Mapping[str, Any], settings: Shared, recipe: str, identity: str, resumed: bool
) -> TrackedStage:
    # The tracker's own settings do not influence the stage.
    config = {name: value for name, value in redacted(dict(values)).items() if name != "tracker"}
    swept = redacted(settings.swept)  # the compared setting comes first
    labels = [f"{key}={value}" for key, value in swept.items()]
    return TrackedStage(
        id=identity,
        name=" ".join([recipe, *labels]),
        recipe=recipe,
        group=settings.group or recipe,
        tags=[*labels, *redacted(settings.tags)],
        config=config | {"recipe": recipe, "level": labels[0] if labels else recipe, "swept": swept},
        question=str(values["question"]),
        directory=Path(values["outputs"]).resolve(),
        resumed=resumed,
    )


def _without_nulls(row: Mapping[str, float | None]) -> dict[str, float]:
    return {key: value for key, value in row.items() if value is not None}
