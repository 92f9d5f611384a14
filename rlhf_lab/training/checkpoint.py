"""Exact checkpoints of an interrupted stage: trained tensors, optimisers, algorithm state, log positions.

There is no random state to save, because every generator is seeded by (seed, purpose, step).

`checkpoint.pt` is the checkpoint, and replacing it commits a new one. Tensors that are sharded between processes are
stored next to it, one file per process (`checkpoint-<step>/rank_<r>.safetensors`); `checkpoint.pt` contains the row
counts of each file. Files are read row by row, so any other number of processes can resume.
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
from torch.distributed.tensor import DTensor, Replicate, Shard

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, replacing

NAME = "checkpoint.pt"
TENSORS, SHARDS, LOGS = "tensors", "shards", "logs"
OwnRows = tuple[dict[str, int], int]
"""Rows of a process: their count for each tensor, and the checksum of their file."""
REWRITTEN = ("manifest.json", "result.json")
"""Files of a stage that every attempt rewrites."""


def save(directory: Path, state: dict[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Replace the stage's checkpoint; see `Writer.save`."""
    Writer(directory).save(state, tensors or {})


class Writer:
    """Writer of a stage's checkpoints, one at a time. If it is killed, the old or the new checkpoint remains complete.

    All processes must call its methods.

    Args:
        background: True to write in another thread, from a copy in host memory, during training.
    """

    def __init__(self, directory: Path, *, background: bool = False):
        self.directory, self.background = directory, background
        self._pending: tuple[dict[str, Any], Future[OwnRows | None]] | None = None

    def save(self, state: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Start to replace the checkpoint. If it is written in the background, `finish` completes the replacement.

        Args:
            state: JSON-like values and tensors that every process has, including `step`.
            tensors: trained tensors by name; some may be sharded between the processes.
        """
        self.finish()
        sharded = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
        full = {name: tensor for name, tensor in tensors.items() if name not in sharded}
        local = {name: _rows_to_write(tensor) for name, tensor in sharded.items()}
        if not ranks.is_main():
            state, full = {"step": state["step"]}, {}  # the main process writes these
        # Training changes all of these during a background write, so they are copied first.
        if self.background:
            state, full, local = copy.deepcopy(state), _host_copies(full), _host_copies(local)
        state = {**state, TENSORS: full, LOGS: _log_digests(self.directory) if ranks.is_main() else {}}
        write = partial(self._write, state, local, ranks.rank())
        if self.background:
            pool = ThreadPoolExecutor(1)
            self._pending = (state, pool.submit(write))
            pool.shutdown(wait=False)
        else:
            self._commit(state, write())

    def finish_if_written(self) -> None:
        """Replace the old checkpoint by the new one if every process has written its part."""
        if self._pending is not None and not ranks.any_of(not self._pending[1].done()):
            self.finish()

    def finish(self) -> None:
        """Wait until the checkpoint is replaced. Raise any error of the write."""
        if self._pending is None:
            return
        state, written = self._pending
        try:
            shard = written.result()
        finally:
            if written.done():  # an interrupted wait keeps it pending
                self._pending = None
        self._commit(state, shard)

    def wait(self) -> None:
        """Wait for a running write after an error. An incomplete checkpoint is not committed; the old one remains."""
        if self._pending is not None:
            wait([self._pending[1]])

    def _commit(self, state: dict[str, Any], shard: OwnRows | None) -> None:
        """Commit the new checkpoint once every process has written its part."""
        if shard is not None:
            shards = ranks.exchange(shard)
            state[SHARDS] = {
                "folder": _shard_dir(state),
                "rows": {name: [counts[name] for counts, _ in shards] for name in shard[0]},
                "checksums": [checksum for _, checksum in shards],
            }
            self._write_main(state)
        if ranks.is_main():
            # Old shards are removed last: until checkpoint.pt is replaced, the valid checkpoint needs them.
            _remove_shards(self.directory, keep=_shard_dir(state) if shard is not None else "")
        ranks.wait()

    def _write(self, state: dict[str, Any], local: Mapping[str, Tensor], rank: int) -> OwnRows | None:
        """Write this process's rows of sharded tensors or, if there are none, the checkpoint itself."""
        if not local:
            self._write_main(state)
            return None
        directory = self.directory / _shard_dir(state)
        directory.mkdir(exist_ok=True)
        path = directory / _shard_name(rank)
        with replacing(path, every_process=True) as temporary:
            host_rows = {name: rows.detach().cpu().contiguous() for name, rows in local.items()}
            save_file(host_rows, temporary)
        return {name: len(rows) for name, rows in local.items()}, _crc32(path)

    def _write_main(self, state: dict[str, Any]) -> None:
        if ranks.is_main():
            # An open file instead of a path, because torch hides the reason of a failed write to a path.
            with replacing(self.directory / NAME) as temporary, temporary.open("wb") as file:
                torch.save(state, file)


def load(directory: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Return (state, None), (None, reason) if the checkpoint is unreadable, or (None, None) if there is none.

    `Saved(directory, state)` gives access to the tensors. Raise ArtifactError if the checkpoint is complete but one of
    its logs is not, because only the earlier steps could write that log again.
    """
    state, problem = _read_state(directory / NAME)
    if state is not None:
        _check_logs(directory, state.get(LOGS, {}))
        problem = _shard_damage(directory, state.get(SHARDS))
    # Each process has checked only some of the shards, and all have to agree on whether to use the checkpoint.
    problems = [problem for problem in ranks.exchange(problem) if problem]
    return (None, problems[0]) if problems else (state, None)


def _read_state(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    if not path.exists():
        return None, None
    try:
        with zipfile.ZipFile(path) as archive:  # torch's format is a zip file, but torch ignores its checksums
            damaged_member = archive.testzip()
        if damaged_member:
            return None, f"{path} is damaged at {damaged_member}"
        return torch.load(path, weights_only=True, map_location="cpu"), None
    except Exception as error:  # damage can make zipfile, pickle and torch raise anything
        first_line = (str(error) or repr(error)).splitlines()[0]
        return None, f"{path} cannot be read: {first_line[:200]}"


def remove(directory: Path) -> None:
    (directory / NAME).unlink(missing_ok=True)
    _remove_shards(directory)


class Saved:
    """Access to the tensors of a loaded checkpoint."""

    def __init__(self, directory: Path, state: Mapping[str, Any]):
        self.directory = directory
        self.full: Mapping[str, Tensor] = state.get(TENSORS, {})
        self.shards: Mapping[str, Any] = state.get(SHARDS) or {"rows": {}}

    def names(self) -> set[str]:
        return {*self.full, *self.shards["rows"]}

    def tensor_like(self, name: str, target: Tensor) -> Tensor:
        """Return the tensor `name`, sharded like `target` if it has the same shape, else in full."""
        # Optimizer state may differ in shape from its parameter, e.g. AdamW's scalar `step`; it is then not sharded.
        same_shape = name in self.shards["rows"] or self.full[name].shape == target.shape
        if not isinstance(target, DTensor) or not same_shape:
            return self._read_rows(name, 0, None)
        first, last = _local_rows(target)
        local = self._read_rows(name, first, last).to(target.device)
        return DTensor.from_local(
            local, target.device_mesh, target.placements, shape=target.shape, stride=target.stride()
        )

    def _read_rows(self, name: str, first: int, last: int | None) -> Tensor:
        """Return rows [first, last) of a tensor; None is the end."""
        if name in self.full:
            return self.full[name] if last is None else self.full[name][first:last]
        pieces: list[Tensor] = []
        start = 0
        for rank, count in enumerate(self.shards["rows"][name]):  # the file of `rank` contains the rows [start, end)
            end = start + count
            low = max(first, start)
            high = end if last is None else min(last, end)
            # A process without rows reads an empty slice of the first file, which determines the shape and dtype.
            if low < high or (rank == 0 and first == last):
                with safe_open(self.directory / self.shards["folder"] / _shard_name(rank), framework="pt") as file:
                    pieces.append(file.get_slice(name)[low - start : max(high, low) - start])
            start = end
        return torch.cat(pieces)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training changes: all, or only the trained ones if a frozen base is reloaded instead."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if any(not p.requires_grad for p in model.parameters()):
        return trained
    # Only buffers of the state dict. Others, e.g. rotary frequencies, are computed when a model is built.
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    return trained | buffers


@torch.no_grad()
def load_trained_state(model: nn.Module, saved: Saved, prefix: str) -> None:
    """Load the tensors of `trained_state` that were saved under `prefix`. Raise RuntimeError if they differ."""
    tensors = trained_state(model)
    stored = {name.removeprefix(prefix) for name in saved.names() if name.startswith(prefix)}
    if stored != tensors.keys():
        different = sorted(stored ^ tensors.keys())
        raise RuntimeError(f"the checkpoint and the trained model have different tensors, such as {different[0]}")
    for name, tensor in tensors.items():
        tensor.copy_(saved.tensor_like(prefix + name, tensor))


def _log_digests(directory: Path) -> dict[str, tuple[int, str]]:
    """Return name → (size in bytes, digest) of the files that an attempt has written so far and only appends to."""
    paths = sorted(directory.glob("*.json*"))
    logs = [path for path in paths if path.name not in REWRITTEN and not path.name.startswith(".")]
    return {path.name: (path.stat().st_size, file_digest(path)) for path in logs}


def _check_logs(directory: Path, logs: Mapping[str, tuple[int, str]]) -> None:
    """Raise ArtifactError unless every log starts with its content at the checkpoint."""
    for name, (size, digest) in logs.items():
        path = directory / name
        if not path.is_file() or file_digest(path, 0, size) != digest:
            raise ArtifactError(
                f"{path} is damaged: its first {size} bytes differ from those present when {directory / NAME} "
                f"was saved, so rows would be lost or wrong. Restore the file from a copy, or delete {directory} to "
                "run the stage again from its start"
            )


def _local_rows(tensor: DTensor) -> tuple[int, int]:
    """Return the rows [first, last) of a tensor in this process. FSDP2 splits dimension 0 like `torch.chunk`."""
    mesh = tensor.device_mesh
    *copies, placement = tensor.placements  # with several copies the first dimension of the mesh counts them
    assert all(isinstance(each, Replicate) for each in copies), f"expected copies of shards, not {tensor.placements}"
    assert isinstance(placement, Shard) and placement.dim == 0, f"expected sharding by rows, not {placement}"
    rows = tensor.shape[0]
    dimension = mesh.ndim - 1
    rows_per_process = -(-rows // mesh.size(dimension))  # rounded up: the last processes may have fewer rows, or none
    first = min(mesh.get_local_rank(dimension) * rows_per_process, rows)
    return first, min(first + rows_per_process, rows)


def _rows_to_write(tensor: DTensor) -> Tensor:
    """Return the rows that this process writes: its own, or none if its copy of the model is not the first."""
    rows = tensor.to_local()
    mesh = tensor.device_mesh
    is_first_copy = mesh.ndim == 1 or mesh.get_local_rank(0) == 0
    return rows if is_first_copy else rows[:0]


def _host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _shard_name(rank: int) -> str:
    return f"rank_{rank}.safetensors"


def _shard_dir(state: Mapping[str, Any]) -> str:
    return f"checkpoint-{state['step']}"


def _shard_damage(directory: Path, shards: Mapping[str, Any] | None) -> str | None:
    """Return a problem of the shard files that this process checks, or None. Processes check different files."""
    if not shards:
        return None
    for rank, checksum in ranks.shard(list(enumerate(shards["checksums"]))):
        path = directory / shards["folder"] / _shard_name(rank)
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


def _remove_shards(directory: Path, keep: str = "") -> None:
    for path in directory.glob("checkpoint-*"):
        if path.is_dir() and path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
