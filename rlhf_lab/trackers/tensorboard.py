"""`tracker=tensorboard`: event files in `outputs/tensorboard/<project>/<group>/<run>/`.

TensorBoard draws points in the order they were written, so an attempt that resumes writes its run's folder anew.
Settings, policies and samples are texts.
"""

from __future__ import annotations

import shutil
from typing import Any

import yaml

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.trackers.settings import Tensorboard
from rlhf_lab.trackers.tracker import Outcome, Row, Subject, Table


class TensorboardTracker:
    """One folder of event files."""

    continues = False

    def __init__(self, writer: Any):
        self._writer = writer
        self._last_step = 0

    def log(self, row: Row) -> None:
        self._last_step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, self._last_step)
        self._writer.flush()

    def finish(self, status: str, outcome: Outcome) -> None:
        for name, value in outcome.final.items():
            self._writer.add_scalar(f"final/{name}", value, self._last_step)
        for name, table in outcome.tables.items():
            self._writer.add_text(name, markdown(table), self._last_step)
        self._writer.add_text("status", status, self._last_step)
        self._writer.close()


def build(settings: Tensorboard, subject: Subject) -> TensorboardTracker:
    """Open an empty folder of event files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["tensorboard"]) from error
    folder = subject.folder / "tensorboard" / settings.project / subject.group.replace("/", "-") / subject.id
    shutil.rmtree(folder, ignore_errors=True)
    writer = SummaryWriter(str(folder))
    config = yaml.safe_dump(subject.config, sort_keys=False, allow_unicode=True)
    writer.add_text("config", f"```yaml\n{config}```")
    writer.add_text("run", f"{subject.name}: {subject.question}  \ntags: {', '.join(subject.tags) or 'none'}")
    return TensorboardTracker(writer)


def markdown(table: Table) -> str:
    """A table as Markdown; line breaks and bars in its cells are made harmless."""
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(_format_cell(value) for value in row) + " |" for row in rows)


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")
