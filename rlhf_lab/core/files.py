"""Files that are complete or absent: written beside, flushed to disk, renamed. What the disk refuses is explained.

Of several processes that work on one stage only the main one writes (`only_main_writes`); in the others every function
that writes does nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ArtifactError, ConfigError, StorageError

REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there or raise the quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "make it writable or choose another folder with outputs=FOLDER",
    errno.EIO: "check the disk, which reports errors",
}
"""Why a disk refuses a file → what to do about it."""
PERMISSION = dict.fromkeys(
    (errno.EACCES, errno.EPERM),
    "give this user permission to write there or choose another folder with outputs=FOLDER",
)
"""The same for a file that is known to be written; one that is read may refuse as well."""

_writes = True


def only_main_writes(is_main: bool) -> None:
    """From now on this process writes files only if it is the main one."""
    global _writes
    _writes = is_main


@contextmanager
def replacing(path: Path, *, every_process: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what was written there replaces `path` when the block succeeds.

    Raises StorageError when the disk refuses it; `path` is then what it was.

    Args:
        every_process: also in a process that is not the main one.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.part")
    with explained(path):
        _remove_abandoned(path)
        _remove(temporary)
        try:
            yield temporary
            if not _writes and not every_process:
                return
            for file in [temporary] if temporary.is_file() else sorted(temporary.rglob("*")):
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
            if temporary.is_dir():
                _remove(path)
            os.replace(temporary, path)
        finally:
            _remove(temporary)


def _remove_abandoned(path: Path) -> None:
    """Delete what processes of this machine that were killed left of `path` half-written."""
    prefix = f".{path.name}.{socket.gethostname()}-"
    for part in path.parent.glob(f"{prefix}*.part") if path.parent.is_dir() else ():
        number = part.name.removeprefix(prefix).removesuffix(".part")
        if number.isdigit() and not _alive(int(number)):
            _remove(part)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an error of the disk in the block into a StorageError that says what to do; other errors pass."""
    try:
        yield
    except Exception as error:
        found = storage_error(error, path)
        if found is None or found is error:
            raise
        raise found from error


def storage_error(error: BaseException, path: Path | None = None) -> StorageError | None:
    """The error as a StorageError when a disk that is full, read-only or broken is behind it, else None.

    Args:
        path: what was being written; without it, the file that the error names, and a lack of permission is None.
    """
    if isinstance(error, StorageError):
        return error
    remedies = REMEDIES | PERMISSION if path else REMEDIES
    link: BaseException | None = error
    while link is not None:
        number = link.errno if isinstance(link, OSError) else _rust_errno(link)
        if number in remedies:
            place = path or getattr(link, "filename", None) or "a file"
            return StorageError(
                f"{place} cannot be written: {os.strerror(number)}; {remedies[number]}, then give the same command "
                "again: it goes on from what is saved"
            )
        link = link.__cause__ or link.__context__
    return None


def _rust_errno(error: BaseException) -> int | None:
    """The number in a message of safetensors or tokenizers, such as "No space left on device (os error 28)"."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match.group(1)) if match else None


def make_folder(path: Path) -> None:
    """Make a folder and those above it. Raises StorageError when the disk refuses it or the name can be no folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"  # such as below /proc, which takes no folders, not even of root
        refused = StorageError(f"{path} cannot be made ({reason}); choose another folder with outputs=FOLDER")
        raise storage_error(error, path) or refused from error


def check_outputs(folder: Path, *, writes: bool = True) -> None:
    """Raise ConfigError when `outputs` cannot be a folder, or cannot be written to. Nothing is made.

    Args:
        writes: whether anything will be written; finished runs can be read from a read-only store.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    which = f"outputs={folder}" if existing == folder else f"outputs={folder}: {existing}"
    if not existing.is_dir():
        kind = "a link to nothing" if existing.is_symlink() and not existing.exists() else "a file"
        raise ConfigError(f"{which} is {kind}; write outputs=FOLDER with the name of a folder, new or old")
    if writes and not os.access(existing, os.W_OK | os.X_OK):
        reason = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
        raise ConfigError(f"{which} cannot be written to: {os.strerror(reason)}; {(REMEDIES | PERMISSION)[reason]}")


def write_text(path: Path, text: str) -> None:
    if not _writes:
        return
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(value, indent=1, sort_keys=False, default=_encode) + "\n"


def fingerprint(value: Any) -> str:
    """SHA-256 of a value as JSON, the same after it has been written and read."""
    return sha256(json.dumps(value, default=_encode).encode()).hexdigest()


def file_digest(path: Path, start: int = 0, end: int | None = None) -> str:
    """SHA-256 of a file's bytes from `start` up to `end`, or of as many of them as it has."""
    digest, left = sha256(), path.stat().st_size - start if end is None else end - start
    with path.open("rb") as handle:
        handle.seek(start)
        while left > 0 and (block := handle.read(min(left, 2**20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The parsed file, or None when it is missing or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def append_jsonl(path: Path, rows: list[dict[str, Any]]) -> int:
    """Append rows; returns the file's size afterwards. A cut last line, which a kill can leave, is dropped first.

    Raises StorageError when the disk refuses it; rows may then be there in part.
    """
    if not _writes:
        return 0
    with explained(path):
        _drop_cut_line(path)
        return _append(path, rows)


def _append(path: Path, rows: list[dict[str, Any]]) -> int:
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
    """Rows of a file written by `append_jsonl`; a missing file has none, a cut last line is left out.

    Raises ArtifactError naming the line that is not a row.
    """
    data = path.read_bytes() if path.exists() else b""
    rows, _ = _rows(data)
    lines = data.count(b"\n")
    if len(rows) < lines:
        raise ArtifactError(
            f"{path} is damaged: line {len(rows) + 1} of {lines} is not a JSON object; restore the file from a copy, "
            "or delete that line to go on without it"
        )
    return rows


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of a JSONL file up to the first line that is cut or not a row, and at which byte each of them ends."""
    return _rows(path.read_bytes() if path.exists() else b"")


def _rows(data: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    for line in data.splitlines(keepends=True):
        try:
            row = json.loads(line.decode("utf-8")) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        if not isinstance(row, dict):
            break
        rows.append(row)
        ends.append((ends[-1] if ends else 0) + len(line))
    return rows, ends


def truncate(path: Path, size: int) -> None:
    """Cut a log back to the size it had at a checkpoint."""
    if _writes and path.exists() and path.stat().st_size > size:
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
