"""What of the store stands for a stage as it is. Reading it needs no torch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_lab.core import seal
from rlhf_lab.core.console import console
from rlhf_lab.stages.artifacts import Stage


def reusable(stage: Stage, started: float) -> dict[str, Any] | None:
    """The stored result of a stage, unless it is older than a run that asked for a new one.

    Args:
        started: when that run began (Unix seconds).
    Raises:
        ArtifactError: the stage was changed since it was completed.
    """
    result = stage.result()
    if stage.config.artifacts.refresh:
        built = (stage.folder / "result.json").stat().st_mtime if result else 0.0
        return result if built >= started else None
    seal.check(stage.folder, rebuilt=True, say=_tell)
    if result:
        with suppress(OSError):  # on a read-only disk it stays
            forget_attempts(stage.folder)
    return result


def check_source(source: Path) -> None:
    """Raises ArtifactError where a stage of another store, its run directory or the model/ in it, was changed."""
    for folder in (source, source.parent):
        seal.check(folder, rebuilt=False, say=_tell)


def forget_attempts(folder: Path) -> None:
    """Remove what only an unfinished stage needs, once result.json says that it is complete."""
    shutil.rmtree(folder / "trl", ignore_errors=True)
    if any(folder.glob("checkpoint[.-]*")):
        from rlhf_lab.training import checkpoint  # imports torch

        checkpoint.remove(folder)


def _tell(line: str) -> None:
    console.print(f"  {line}", soft_wrap=True)
