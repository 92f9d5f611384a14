"""`tracker=trackio`: one SQLite file per project in `outputs/trackio/`, or in TRACKIO_DIR if that is set.

`trackio show --project rlhf_lab` displays them. Tracking itself opens no port and no browser. A resumed stage continues
the same tracked run.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.trackers.settings import Trackio
from rlhf_lab.trackers.tracker import Row, StageOutcome, TrackedStage


class TrackioTracker:
    """Tracker that writes to a Trackio run."""

    def __init__(self, trackio: Any, run: Any, continues: bool):
        self._trackio = trackio
        self._run = run
        self.continues = continues
        self._last_step = 0

    def log(self, row: Row) -> None:
        values = dict(row)
        # Trackio takes the step as an argument and not as a metric.
        self._last_step = int(values.pop("step"))
        if "time" in values:  # a name that Trackio reserves: it would warn, and show `__time`
            values["seconds"] = values.pop("time")
        self._run.log(values, step=self._last_step)

    def finish(self, status: str, outcome: StageOutcome) -> None:
        final = {f"final/{name}": value for name, value in outcome.final.items()}
        tables = {
            name: self._trackio.Table(columns=table.columns, data=table.rows) for name, table in outcome.tables.items()
        }
        self._run.log({**final, **tables, "status": status}, step=self._last_step)
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


def build(settings: Trackio, subject: TrackedStage) -> TrackioTracker:
    """Start a Trackio run with the subject's id as its name, because Trackio identifies runs by name."""
    # Set before the import; a value of the user's environment wins.
    os.environ.setdefault("TRACKIO_DIR", str(subject.directory / "trackio"))
    try:
        import trackio
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["trackio"]) from error
    with contextlib.redirect_stdout(io.StringIO()):
        run = trackio.init(
            project=settings.project,
            name=subject.id,
            group=subject.group,
            config={**subject.config, "name": subject.name, "tags": subject.tags},
            resume="allow",
            embed=False,
        )
    return TrackioTracker(trackio, run, subject.resumed)
