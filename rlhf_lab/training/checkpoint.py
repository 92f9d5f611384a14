"""Saves and restores an interrupted stage exactly: trained tensors, optimisers, algorithm state, log positions.

There is no random state to save: every draw comes from a generator seeded by (seed, what it is for, step).

`checkpoint.pt` is the checkpoint; replacing it is what commits one. Tensors that are divided between processes lie
beside it, each process's rows in a file of its own (`checkpoint-<step>/rank_<r>.safetensors`), and `checkpoint.pt` says
which rows are where. They are read back row by row, so another number of processes, or one, can go on.
"""

from __future__ import annotations

import copy
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
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
OwnRows = tuple[dict[str, int], int]
"""Of a process's rows: how many of each tensor, and the checksum of their file."""
REWRITTEN = ("manifest.json", "result.json")
"""Files of a stage that every attempt writes anew."""


def save(folder: Path, state: dict[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Replace the stage's checkpoint; see `Writer.save`."""
    Writer(folder).save(state, tensors or {})


class Writer:
    """Writes a stage's checkpoints, one after another. A kill at any moment leaves the old one or the new one.

    All processes must call its methods.

    Args:
        background: write in another thread, from a copy in host memory, while training goes on.
    """

    def __init__(self, folder: Path, *, background: bool = False):
        self.folder, self.background = folder, background
        self._pending: tuple[dict[str, Any], Future[OwnRows | None]] | None = None

    def save(self, state: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace the checkpoint; in the background, `finish` ends it.

        Args:
            state: plain values and tensors that every process has, with `step` among them.
            tensors: what is trained, by name; some may be divided between the processes.
        """
        self.finish()
        divided = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        whole = {name: tensor for name, tensor in tensors.items() if name not in divided}
        local = {name: tensor.to_local() for name, tensor in divided.items()}
        if not ranks.is_main():
            state, whole = {"step": state["step"]}, {}  # the main process writes these
        if self.background:  # training changes all of these while they are written
            state, whole, local = copy.deepcopy(state), _host_copies(whole), _host_copies(local)
        state = {**state, TENSORS: whole, LOGS: _log_digests(self.folder) if ranks.is_main() else {}}
        write = partial(self._write, state, local, ranks.rank())
        if self.background:
            pool = ThreadPoolExecutor(1)
            self._pending = (state, pool.submit(write))
            pool.shutdown(wait=False)
        else:
            self._commit(state, write())

    def finish_if_written(self) -> None:
        """End the replacement if every process has written its part."""
        if self._pending is not None and not ranks.any_of(not self._pending[1].done()):
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint is replaced. Raises what went wrong while it was written."""
        if self._pending is None:
            return
        state, written = self._pending
        try:
            shard = written.result()
        finally:
            if written.done():  # not where an interruption ended the wait
                self._pending = None
        self._commit(state, shard)

    def wait(self) -> None:
        """Let what is being written end, and leave the old checkpoint if that is not all: after an error."""
        if self._pending is not None:
            wait([self._pending[1]])

    def _commit(self, state: dict[str, Any], shard: OwnRows | None) -> None:
        """Let the new checkpoint count, once every process has written its part."""
        if shard is not None:
            shards = ranks.exchange(shard)
            state[SHARDS] = {
                "folder": _shard_folder(state),
                "rows": {name: [counts[name] for counts, _ in shards] for name in shard[0]},
                "checksums": [checksum for _, checksum in shards],
            }
            self._write_main(state)
        if ranks.is_main():
            # the older shards go last: until checkpoint.pt is replaced, they belong to the checkpoint that counts
            _remove_shards(self.folder, keep=_shard_folder(state) if shard is not None else "")
        ranks.wait()

    def _write(self, state: dict[str, Any], local: Mapping[str, Tensor], rank: int) -> OwnRows | None:
        """Write this process's rows of divided tensors, or, where there are none, the checkpoint itself."""
        if not local:
            self._write_main(state)
            return None
        folder = self.folder / _shard_folder(state)
        folder.mkdir(exist_ok=True)
        path = folder / _shard_name(rank)
        with replacing(path, every_process=True) as temporary:
            save_file({name: rows.detach().cpu().contiguous() for name, rows in local.items()}, temporary)
        return {name: len(rows) for name, rows in local.items()}, _crc32(path)

    def _write_main(self, state: dict[str, Any]) -> None:
        if ranks.is_main():
            # an open file, not its path: given a path, torch hides why a write failed
            with replacing(self.folder / NAME) as temporary, temporary.open("wb") as file:
                torch.save(state, file)


def load(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """(state, None), or (None, reason) when a checkpoint exists but cannot be read, or (None, None).

    `Saved(folder, state)` gives the tensors. Raises ArtifactError when the checkpoint is whole but a log that goes
    with it is not: only the steps before could write that again.
    """
    state, problem = _read_state(folder / NAME)
    if state is not None:
        _check_logs(folder, state.get(LOGS, {}))
        problem = _shard_damage(folder, state.get(SHARDS))
    # each process has checked its share of the shards; all have to agree on whether the checkpoint is used
    problems = [problem for problem in ranks.exchange(problem) if problem]
    return (None, problems[0]) if problems else (state, None)


def _read_state(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """(what `checkpoint.pt` holds, None), (None, why it cannot be read), or (None, None) where there is none."""
    if not path.exists():
        return None, None
    try:
        with zipfile.ZipFile(path) as archive:  # torch's format is a zip file, whose checksums torch does not compare
            damaged_member = archive.testzip()
        if damaged_member:
            return None, f"{path} is damaged at {damaged_member}"
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

    def tensor_like(self, name: str, target: Tensor) -> Tensor:
        """The tensor `name`, divided between the processes as `target` is if it has its shape, else whole."""
        # a moment may have another shape than its parameter, such as AdamW's scalar `step`: that is never divided
        same_shape = name in self.shards["rows"] or self.whole[name].shape == target.shape
        if not isinstance(target, DTensor) or not same_shape:
            return self._read_rows(name, 0, None)
        first, last = _local_rows(target)
        local = self._read_rows(name, first, last).to(target.device)
        return DTensor.from_local(
            local, target.device_mesh, target.placements, shape=target.shape, stride=target.stride()
        )

    def _read_rows(self, name: str, first: int, last: int | None) -> Tensor:
        """Rows [first, last) of a tensor; None is to the end."""
        if name in self.whole:
            return self.whole[name] if last is None else self.whole[name][first:last]
        pieces: list[Tensor] = []
        begin = 0
        for rank, count in enumerate(self.shards["rows"][name]):  # rank's file holds the rows [begin, end)
            end = begin + count
            low = max(first, begin)
            high = end if last is None else min(last, end)
            # a process that holds no rows reads an empty slice of the first file, for its width and dtype
            if low < high or (rank == 0 and first == last):
                with safe_open(self.folder / self.shards["folder"] / _shard_name(rank), framework="pt") as file:
                    pieces.append(file.get_slice(name)[low - begin : max(high, low) - begin])
            begin = end
        return torch.cat(pieces)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes: all of them, or those beside a frozen base, which is loaded again instead."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    has_frozen_base = any(not p.requires_grad for p in model.parameters())
    if has_frozen_base:
        return trained
    # only buffers of the state dict: others, such as rotary frequencies, are computed when a model is built
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    return trained | buffers


@torch.no_grad()
def load_trained_state(model: nn.Module, saved: Saved, prefix: str) -> None:
    """Give a model the tensors of `trained_state` that were saved under `prefix`. Raises RuntimeError for others."""
    tensors = trained_state(model)
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    if stored != tensors.keys():
        different = sorted(stored ^ tensors.keys())
        raise RuntimeError(f"the checkpoint holds other tensors than the model trains, such as {different[0]}")
    for name, tensor in tensors.items():
        tensor.copy_(saved.tensor_like(prefix + name, tensor))


def _log_digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Name → (size in bytes, digest) of what an attempt has written so far and never changes."""
    paths = sorted(folder.glob("*.json*"))
    logs = [path for path in paths if path.name not in REWRITTEN and not path.name.startswith(".")]
    return {path.name: (path.stat().st_size, file_digest(path)) for path in logs}


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


def _local_rows(tensor: DTensor) -> tuple[int, int]:
    """Rows [first, last) of a tensor that this process holds: FSDP2 divides the first dimension like `torch.chunk`."""
    mesh = tensor.device_mesh
    (placement,) = tensor.placements
    assert isinstance(placement, Shard) and placement.dim == 0, f"expected rows to be divided, not {placement}"
    rows = tensor.shape[0]
    rows_per_process = -(-rows // mesh.size())  # rounded up: the last processes may hold fewer rows, or none
    first = min(mesh.get_local_rank() * rows_per_process, rows)
    return first, min(first + rows_per_process, rows)


def _shard_name(rank: int) -> str:
    return f"rank_{rank}.safetensors"


def _host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _shard_folder(state: Mapping[str, Any]) -> str:
    return f"checkpoint-{state['step']}"


def _shard_damage(folder: Path, shards: Mapping[str, Any] | None) -> str | None:
    """What is wrong with this process's share of a checkpoint's shard files, if anything."""
    if not shards:
        return None
    for rank, checksum in ranks.share(list(enumerate(shards["checksums"]))):
        path = folder / shards["folder"] / _shard_name(rank)
        if not path.is_file():
            return f"{path} is missing"
        if _crc32(path) != checksum:
            return f"{path} is damaged"
    return None


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _remove_shards(folder: Path, keep: str = "") -> None:
    for path in folder.glob("checkpoint-*"):
        if path.is_dir() and path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
