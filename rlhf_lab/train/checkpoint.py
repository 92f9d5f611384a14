"""Saves and restores an interrupted stage exactly: parameters, optimisers, algorithm state, log positions.

There is no random state to save: every draw comes from a generator seeded by (seed, what it is for, step).
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.files import replacing

NAME = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the stage's checkpoint; a kill at any moment leaves the old one or the new one."""
    with replacing(folder / NAME) as part:
        torch.save(state, part)


def load(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """(state, None), or (None, reason) when a checkpoint exists but cannot be read, or (None, None)."""
    path = folder / NAME
    if not path.exists():
        return None, None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            return None, f"{path} is damaged at {damaged}"
        return torch.load(path, weights_only=True, map_location="cpu"), None
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        return None, f"{path} cannot be read: {str(error).splitlines()[0][:200]}"


def remove(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
