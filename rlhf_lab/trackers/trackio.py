"""`tracker=trackio`: one SQLite file per project in `outputs/trackio/`, or in TRACKIO_DIR where that is set.

`trackio show --project rlhf_lab` serves them; tracking itself opens no port and no browser. A resumed stage goes on in
the same tracked run.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.trackers.settings import Trackio
from rlhf_lab.trackers.tracker import Outcome, Row, Subject


class TrackioTracker:
    """A Trackio run."""

    def __init__(self, trackio: Any, run: Any, continues: bool):
        self._trackio = trackio
        self._run = run
        self.continues = continues
        self._last_step = 0

    def log(self, row: Row) -> None:
        values = dict(row)
        self._last_step = int(values.pop("step"))
        self._run.log(values, step=self._last_step)

    def finish(self, status: str, outcome: Outcome) -> None:
        results: dict[str, Any] = {f"final/{name}": value for name, value in outcome.final.items()}
        for name, table in outcome.tables.items():
            results[name] = self._trackio.Table(columns=table.columns, data=table.rows)
        self._run.log({**results, "status": status}, step=self._last_step)
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


def build(settings: Trackio, subject: Subject) -> TrackioTracker:
    """Start a Trackio run under the subject's id; Trackio knows runs by name."""
    os.environ.setdefault("TRACKIO_DIR", str(subject.folder / "trackio"))
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
