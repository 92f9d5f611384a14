"""`tracker=tensorboard`: event files in `outputs/tensorboard/<project>/<group>/<run>/`.

TensorBoard plots points in the order in which they were written, so a resumed attempt rewrites its run's directory.
Settings, policies and samples are logged as texts.
"""

from __future__ import annotations

import shutil
from typing import Any

import yaml

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.trackers.settings import Tensorboard
from rlhf_lab.trackers.tracker import Row, StageOutcome, TrackedStage, TrackedTable


class TensorboardTracker:
    """Tracker that writes event files to one directory."""

    continues = False

    def __init__(self, writer: Any):
        self._writer = writer
        self._last_step = 0

    def log(self, row: Row) -> None:
        self._last_step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, self._last_step)
        self._writer.flush()  # TensorBoard reads the files while the stage runs

    def finish(self, status: str, outcome: StageOutcome) -> None:
        for name, value in outcome.final.items():
            # Final values are points at the last step, because TensorBoard has no summary of a run.
            self._writer.add_scalar(f"final/{name}", value, self._last_step)
        for name, table in outcome.tables.items():
            self._writer.add_text(name, markdown(table), self._last_step)
        self._writer.add_text("status", status, self._last_step)
        self._writer.close()


def build(settings: Tensorboard, subject: TrackedStage) -> TensorboardTracker:
    """Create an empty directory of event files and open it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["tensorboard"]) from error
    group = subject.group.replace("/", "-")  # a group is one level of directories
    directory = subject.directory / "tensorboard" / settings.project / group / subject.id
    # Old event files would be plotted together with the new ones.
    shutil.rmtree(directory, ignore_errors=True)
    writer = SummaryWriter(str(directory))
    config = yaml.safe_dump(subject.config, sort_keys=False, allow_unicode=True)
    writer.add_text("config", f"```yaml\n{config}```")
    tags = ", ".join(subject.tags) or "none"
    # Two spaces before the line break are a line break in Markdown.
    writer.add_text("run", f"{subject.name}: {subject.question}  \ntags: {tags}")
    return TensorboardTracker(writer)


def markdown(table: TrackedTable) -> str:
    """Format a table as Markdown; line breaks and vertical bars in cells are escaped."""
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(_format_cell, row))} |" for row in rows)


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # The backslash is escaped first, so that it does not escape the marks that are added here.
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
