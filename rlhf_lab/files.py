"""Files that are complete or absent: written beside, flushed to disk, renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there replaces `path` when the block succeeds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    _remove(temporary)
    try:
        yield temporary
        for file in [temporary] if temporary.is_file() else sorted(temporary.rglob("*")):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        if temporary.is_dir():
            _remove(path)
        os.replace(temporary, path)
    finally:
        _remove(temporary)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=False, default=_encode) + "\n")


def read_json(path: Path) -> Any:
    """The parsed file, or None when it is missing or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None


def append_jsonl(path: Path, rows: list[dict[str, Any]]) -> int:
    """Append rows; returns the file's size afterwards. A cut last line, which a kill can leave, is dropped first."""
    _drop_cut_line(path)
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row, default=_encode) + "\n" for row in rows)
        handle.flush()
        os.fsync(handle.fileno())
        return handle.tell()


def _drop_cut_line(path: Path) -> None:
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":
            handle.seek(0)
            handle.truncate(handle.read().rfind(b"\n") + 1)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a file written by `append_jsonl`; a missing file has none, a cut last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def truncate(path: Path, size: int) -> None:
    """Cut a log back to the size it had at a checkpoint."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _encode(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
