"""Reads the transaction log of an offline W&B run back, since the client has no reader of its own.

The file is 7 bytes of header, then LevelDB's log format: blocks of 32 KiB of chunks, each with checksum (4 bytes,
little endian), length (2) and kind (1: whole record, 2: first, 3: middle, 4: last part); a record is a protobuf
`Record`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HEADER, BLOCK, CHUNK_HEADER = 7, 32768, 7


def hide_login(patch: pytest.MonkeyPatch, directory: Path) -> None:
    """No login, and no files of a tracker outside a directory of the test."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "TRACKIO_DIR"):
        patch.delenv(name, raising=False)
    for name in ("NETRC", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        patch.setenv(name, str(directory / "home" / name.lower()))


@dataclass
class OfflineRun:
    """Records that `wandb sync` would send."""

    id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def rows(self) -> list[dict[str, float]]:
        """Logged rows without W&B's own keys and without the tables."""
        own = [{key: value for key, value in row.items() if not key.startswith("_")} for row in self.history]
        return [row for row in own if not any(key.startswith(("policies/", "samples/")) for key in row)]


def read(path: Path) -> OfflineRun:
    run = OfflineRun()
    for record in _records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found = record.run
            run.id, run.name, run.project = found.run_id, found.display_name, found.project
            run.group, run.job_type, run.tags = found.run_group, found.job_type, list(found.tags)
            run.config = {item.key: json.loads(item.value_json) for item in found.config.update}
        elif kind == "history":
            run.history.append({_key(item): json.loads(item.value_json) for item in record.history.item})
        elif kind == "summary":
            run.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < CHUNK_HEADER:  # too small for a chunk: padding
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + CHUNK_HEADER : position + CHUNK_HEADER + size]
        position += CHUNK_HEADER + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
