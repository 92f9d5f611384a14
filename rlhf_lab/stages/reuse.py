"""Reuse of stored results for a stage. Needs no torch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_lab.config import root
from rlhf_lab.core import checksums as seal
from rlhf_lab.core.console import console
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.trackers.settings import Shared


def reusable(stage: Stage, started: float) -> dict[str, Any] | None:
    """Return the stored result of a stage, unless it is older than a run that requested a rebuild (Unix seconds).

    Raises:
        ArtifactError: the stage was changed since it was completed.
    """
    result = stage.result()
    if stage.config.artifacts.refresh:
        built_at = (stage.directory / "result.json").stat().st_mtime if result else 0.0
        return result if built_at >= started else None
    seal.check(stage.directory, rebuilt=True, say=_print_indented)
    if result:
        with suppress(OSError):  # checkpoints stay on a read-only disk
            forget_attempts(stage.directory)
    return result


def track_reused(stage: Stage) -> None:
    if not isinstance(stage.config.tracker, Shared):
        return
    # Imported here because they import torch and pandas, which reading a stored result does not need.
    from rlhf_lab.results.outcome import outcome
    from rlhf_lab.trackers.tracking import track_stored

    values = root.to_values(stage.config)
    track_stored(
        values, stage.config.tracker, stage.recipe, stage.directory, "completed", lambda: outcome(stage.directory)
    )


def check_source(source: Path) -> None:
    """Raise ArtifactError if a stage of another store was changed; `source` is its run directory, or model/ in it."""
    for directory in (source, source.parent):
        seal.check(directory, rebuilt=False, say=_print_indented)


def forget_attempts(directory: Path) -> None:
    for name in ("trl", "progress"):  # of engine=trl and of algorithm=codec_dpo
        shutil.rmtree(directory / name, ignore_errors=True)
    if any(directory.glob("checkpoint[.-]*")):
        from rlhf_lab.training import checkpoint  # imports torch

        checkpoint.remove(directory)


def _print_indented(line: str) -> None:
    console.inform(f"  {line}")
