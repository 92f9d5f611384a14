"""Decides whether a stored result can be reused for a stage. Needs no torch."""

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
        built_at = (stage.folder / "result.json").stat().st_mtime if result else 0.0
        return result if built_at >= started else None
    seal.check(stage.folder, rebuilt=True, say=_print_indented)
    if result:
        with suppress(OSError):  # on a read-only disk the checkpoints stay
            forget_attempts(stage.folder)
    return result


def check_source(source: Path) -> None:
    """Raises ArtifactError where a stage of another store was changed.

    Args:
        source: its run directory, or the model/ in it.
    """
    for folder in (source, source.parent):
        seal.check(folder, rebuilt=False, say=_print_indented)


def forget_attempts(folder: Path) -> None:
    """Remove the checkpoints of a stage that is complete."""
    shutil.rmtree(folder / "trl", ignore_errors=True)
    if any(folder.glob("checkpoint[.-]*")):
        from rlhf_lab.training import checkpoint  # imports torch

        checkpoint.remove(folder)


def _print_indented(line: str) -> None:
    console.print(f"  {line}", soft_wrap=True)
