"""Saves and restores an interrupted stage exactly: trained tensors, optimisers, algorithm state, log positions.

There is no random state to save: every draw comes from a generator seeded by (seed, what it is for, step).
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

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


def trained_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that training changes: all of them, or those beside a frozen base, which is loaded again instead."""
    frozen = {name for name, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad}
    if not frozen:
        return model.state_dict()
    return {name: p.detach() for name, p in model.named_parameters() if name not in frozen}


def load_trained_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Inverse of `trained_state`. Raises RuntimeError when the names differ."""
    expected = trained_state(model).keys()
    if state.keys() != expected:
        different = sorted(state.keys() ^ expected)
        raise RuntimeError(f"the checkpoint holds other tensors than the model trains, such as {different[0]}")
    model.load_state_dict(state, strict=state.keys() == model.state_dict().keys())


def remove(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
