"""Saves and restores an interrupted stage exactly: trained tensors, optimisers, algorithm state, log positions.

There is no random state to save: every draw comes from a generator seeded by (seed, what it is for, step).

`checkpoint.pt` is the checkpoint; replacing it is what commits one. Tensors that are divided between processes lie
beside it, each process's rows in a file of its own (`checkpoint-<step>/rank_<r>.safetensors`), and `checkpoint.pt` says
which rows are where. They are read back row by row, so another number of processes, or one, can go on.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, replacing

NAME = "checkpoint.pt"
TENSORS, SHARDS, LOGS = "tensors", "shards", "logs"
REWRITTEN = ("manifest.json", "result.json")
"""Files of a stage that every attempt writes anew."""


def save(folder: Path, state: dict[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Replace the stage's checkpoint; a kill at any moment leaves the old one or the new one.

    Args:
        state: plain values and tensors that every process has, with `step` among them.
        tensors: what is trained, by name; some may be divided between the processes.
    """
    tensors = tensors or {}
    divided = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    whole = {name: tensor for name, tensor in tensors.items() if name not in divided}
    state = {**state, TENSORS: whole, LOGS: _logs(folder) if ranks.is_main() else {}}
    if divided:
        state[SHARDS] = _write_shards(folder / f"checkpoint-{state['step']}", divided)
    if ranks.is_main():
        with replacing(folder / NAME) as part, part.open("wb") as file:  # given a path, torch hides why a write failed
            torch.save(state, file)
        _remove_shards(folder, keep=f"checkpoint-{state['step']}" if divided else "")
    ranks.wait()


def load(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """(state, None), or (None, reason) when a checkpoint exists but cannot be read, or (None, None).

    `Saved(folder, state)` gives the tensors. Raises ArtifactError when the checkpoint is whole but a log that goes
    with it is not: only the steps before could write that again.
    """
    state, problem = _read(folder / NAME)
    if state is not None:
        _check_logs(folder, state.get(LOGS, {}))
        problem = _damage(folder, state.get(SHARDS))
    problems = [found for found in ranks.exchange(problem) if found]
    return (None, problems[0]) if problems else (state, None)


def _read(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """(what `checkpoint.pt` holds, None), (None, why it cannot be read), or (None, None) where there is none."""
    if not path.exists():
        return None, None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            return None, f"{path} is damaged at {damaged}"
        return torch.load(path, weights_only=True, map_location="cpu"), None
    except Exception as error:  # damage can make zipfile, pickle and torch raise anything
        return None, f"{path} cannot be read: {(str(error) or repr(error)).splitlines()[0][:200]}"


def remove(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
    _remove_shards(folder)


class Saved:
    """The tensors of a loaded checkpoint."""

    def __init__(self, folder: Path, state: Mapping[str, Any]):
        self.folder = folder
        self.whole: Mapping[str, Tensor] = state.get(TENSORS, {})
        self.shards: Mapping[str, Any] = state.get(SHARDS) or {"rows": {}}

    def names(self) -> set[str]:
        return {*self.whole, *self.shards["rows"]}

    def like(self, name: str, target: Tensor) -> Tensor:
        """The tensor `name`, divided between the processes as `target` is if it has its shape, else whole."""
        alike = name in self.shards["rows"] or self.whole[name].shape == target.shape
        if not isinstance(target, DTensor) or not alike:
            return self._rows(name, 0, None)
        first, last = _own_rows(target)
        local = self._rows(name, first, last).to(target.device)
        return DTensor.from_local(
            local, target.device_mesh, target.placements, shape=target.shape, stride=target.stride()
        )

    def _rows(self, name: str, first: int, last: int | None) -> Tensor:
        """Rows [first, last) of a tensor; None is to the end."""
        if name in self.whole:
            return self.whole[name] if last is None else self.whole[name][first:last]
        counts, begin, found = self.shards["rows"][name], 0, []
        for rank, count in enumerate(counts):
            low, high = max(first, begin), begin + count if last is None else min(last, begin + count)
            if low < high or (rank == 0 and first == last):
                with safe_open(self.folder / self.shards["folder"] / _file(rank), framework="pt") as file:
                    found.append(file.get_slice(name)[low - begin : max(high, low) - begin])
            begin += count
        return torch.cat(found)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes: all of them, or those beside a frozen base, which is loaded again instead."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if any(not p.requires_grad for p in model.parameters()):
        return trained
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    return trained | buffers


@torch.no_grad()
def load_trained_state(model: nn.Module, saved: Saved, prefix: str) -> None:
    """Give a model the tensors of `trained_state` that were saved under `prefix`. Raises RuntimeError for others."""
    own = trained_state(model)
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    if stored != own.keys():
        different = sorted(stored ^ own.keys())
        raise RuntimeError(f"the checkpoint holds other tensors than the model trains, such as {different[0]}")
    for name, tensor in own.items():
        tensor.copy_(saved.like(prefix + name, tensor))


def _logs(folder: Path) -> dict[str, tuple[int, str]]:
    """Name → (size in bytes, digest) of what an attempt has written so far and never changes."""
    paths = (p for p in sorted(folder.glob("*.json*")) if p.name not in REWRITTEN and not p.name.startswith("."))
    return {path.name: (path.stat().st_size, file_digest(path)) for path in paths}


def _check_logs(folder: Path, logs: Mapping[str, tuple[int, str]]) -> None:
    """Raises ArtifactError unless every log begins with what it held at the checkpoint."""
    for name, (size, digest) in logs.items():
        path = folder / name
        if not path.is_file() or file_digest(path, 0, size) != digest:
            raise ArtifactError(
                f"{path} is damaged: its first {size} bytes are not those that were there when {folder / NAME} was "
                f"saved, so rows would be lost or wrong. Restore the file from a copy, or delete {folder} to build the "
                "stage again from its start"
            )


def _own_rows(tensor: DTensor) -> tuple[int, int]:
    """Rows [first, last) of a tensor that this process holds: FSDP2 divides the first dimension like `torch.chunk`."""
    mesh, (placement,) = tensor.device_mesh, tensor.placements
    assert isinstance(placement, Shard) and placement.dim == 0, f"expected rows to be divided, not {placement}"
    rows, each = tensor.shape[0], -(-tensor.shape[0] // mesh.size())
    first = min(mesh.get_local_rank() * each, rows)
    return first, min(first + each, rows)


def _file(rank: int) -> str:
    return f"rank_{rank}.safetensors"


def _write_shards(folder: Path, divided: Mapping[str, DTensor]) -> dict[str, Any]:
    """Every process writes its rows. Returns what `checkpoint.pt` says of them."""
    local = {name: tensor.to_local().detach().cpu().contiguous() for name, tensor in divided.items()}
    folder.mkdir(exist_ok=True)
    path = folder / _file(ranks.rank())
    with replacing(path, every_process=True) as part:
        save_file(local, part)
    everyone = ranks.exchange(({name: len(rows) for name, rows in local.items()}, _checksum(path)))
    rows = {name: [counts[name] for counts, _ in everyone] for name in local}
    return {"folder": folder.name, "rows": rows, "checksums": [checksum for _, checksum in everyone]}


def _damage(folder: Path, shards: Mapping[str, Any] | None) -> str | None:
    """What is wrong with this process's share of the files of a checkpoint, if anything."""
    for rank, checksum in ranks.share(list(enumerate(shards["checksums"] if shards else []))):
        path = folder / shards["folder"] / _file(rank)  # type: ignore[index]
        if not path.is_file():
            return f"{path} is missing"
        if _checksum(path) != checksum:
            return f"{path} is damaged"
    return None


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            value = zlib.crc32(block, value)
    return value


def _remove_shards(folder: Path, keep: str = "") -> None:
    for path in folder.glob("checkpoint-*"):
        if path.is_dir() and path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
