"""Files that are complete or absent: written under a temporary name, flushed to disk, renamed.

Errors of the disk become a StorageError that says what to do.

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
import sys
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
"""The same for errors that mean a refused write only where it is known that a file was being written."""

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
            # contents reach the disk before the new name does: else a power cut could leave an empty file there
            for file in [temporary] if temporary.is_file() else sorted(temporary.rglob("*")):
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
            if temporary.is_dir():
                _remove(path)  # a folder cannot be renamed onto one that has files in it
            os.replace(temporary, path)
        finally:
            _remove(temporary)


def _remove_abandoned(path: Path) -> None:
    """Delete temporary files of `path` that killed processes of this machine have left behind."""
    if not path.parent.is_dir():
        return
    prefix = f".{path.name}.{socket.gethostname()}-"
    for temporary in path.parent.glob(f"{prefix}*.part"):
        process = temporary.name.removeprefix(prefix).removesuffix(".part")
        if process.isdigit() and not _is_running(int(process)):
            _remove(temporary)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 is only checked for, not sent
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        return True
    return True


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an error of the disk in the block into a StorageError that says what to do; other errors pass."""
    try:
        yield
    except Exception as error:
        explanation = storage_error(error, path)
        if explanation is None or explanation is error:
            raise
        raise explanation from error


def storage_error(error: BaseException, path: Path | None = None) -> StorageError | None:
    """The error as a StorageError when a disk that is full, read-only or broken is its cause, else None.

    Args:
        path: the file that was being written. Without it, the error's own file is named, and a lack of permission is
            not explained: it may have been a file that was read.
    """
    if isinstance(error, StorageError):
        return error
    remedies = REMEDIES | PERMISSION if path else REMEDIES
    cause: BaseException | None = error
    while cause is not None:  # libraries wrap the error of the disk in errors of their own
        number = cause.errno if isinstance(cause, OSError) else _rust_errno(cause)
        if number in remedies:
            place = path or getattr(cause, "filename", None) or "a file"
            return StorageError(
                f"{place} cannot be written: {os.strerror(number)}; {remedies[number]}, then give the same command "
                "again: it goes on from what is saved"
            )
        cause = cause.__cause__ or cause.__context__
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
    # the folder itself, or the lowest one above it that exists; `lexists`, because a link to nothing is in the way too
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    place = f"outputs={folder}" if existing == folder else f"outputs={folder}: {existing}"
    if not existing.is_dir():
        kind = "a link to nothing" if existing.is_symlink() and not existing.exists() else "a file"
        raise ConfigError(f"{place} is {kind}; write outputs=FOLDER with the name of a folder, new or old")
    longest = os.pathconf(existing, "PC_NAME_MAX")
    for name in folder.parts:
        length = len(os.fsencode(name))
        if length > longest:
            raise ConfigError(
                f"outputs: the name {name[:20]}… has {length} bytes, and {existing} takes at most {longest}; write "
                "outputs=FOLDER with shorter names"
            )
    if writes and not os.access(existing, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        reason = errno.EROFS if is_read_only else errno.EACCES
        raise ConfigError(f"{place} cannot be written to: {os.strerror(reason)}; {(REMEDIES | PERMISSION)[reason]}")


def write_text(path: Path, text: str) -> None:
    if not _writes:
        return
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    if not _writes:
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


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
    digest = sha256()
    bytes_left = path.stat().st_size - start if end is None else end - start
    with path.open("rb") as handle:
        handle.seek(start)
        while bytes_left > 0 and (block := handle.read(min(bytes_left, 2**20))):
            digest.update(block)
            bytes_left -= len(block)
    return digest.hexdigest()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that others wrote. Raises ValueError for all that cannot be read.

    json.JSONDecodeError is one of a place in the text. Without it the standard library raises RecursionError for deep
    nesting, and says of a long integer how to raise a limit of Python.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply; expected fewer than some hundred levels") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:
        limit = sys.get_int_max_str_digits()
        raise ValueError(f"the JSON has an integer of more than {limit} digits; write it as a text") from None


def read_json(path: Path) -> Any:
    """The parsed file, or None when it is missing or not valid JSON."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def append_jsonl(path: Path, rows: list[dict[str, Any]]) -> int:
    """Append rows; returns the file's size afterwards. An incomplete last line, which a kill can leave, goes first.

    Raises StorageError when the disk refuses it; rows may then be there in part.
    """
    if not _writes:
        return 0
    with explained(path):
        _drop_incomplete_line(path)
        return _append(path, rows)


def _append(path: Path, rows: list[dict[str, Any]]) -> int:
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row, default=_encode) + "\n" for row in rows)
        handle.flush()
        os.fsync(handle.fileno())
        return handle.tell()


def _drop_incomplete_line(path: Path) -> None:
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) != b"\n":  # looked at first, so that a complete file need not be read
            handle.seek(0)
            handle.truncate(handle.read().rfind(b"\n") + 1)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a file written by `append_jsonl`; a missing file has none, an incomplete last line is left out.

    Raises ArtifactError naming the line that is not a row.
    """
    data = path.read_bytes() if path.exists() else b""
    rows, _ = _parse_rows(data)
    lines = data.count(b"\n")
    if len(rows) < lines:
        raise ArtifactError(
            f"{path} is damaged: line {len(rows) + 1} of {lines} is not a JSON object; restore the file from a copy, "
            "or delete that line to go on without it"
        )
    return rows


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of a JSONL file up to the first line that is cut off or not a row, and at which byte each of them ends."""
    return _parse_rows(path.read_bytes() if path.exists() else b"")


def _parse_rows(data: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    end = 0
    for line in data.splitlines(keepends=True):
        try:
            row = parse_json(line.decode("utf-8")) if line.endswith(b"\n") else None
        except ValueError:  # no JSON, or no UTF-8
            row = None
        if not isinstance(row, dict):
            break
        end += len(line)
        rows.append(row)
        ends.append(end)
    return rows, ends


def truncate(path: Path, size: int) -> None:
    """Cut a log back to the size it had at a checkpoint."""
    if _writes and path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _encode(value: Any) -> Any:
    """What JSON gets for a value that it does not know."""
    if hasattr(value, "item"):  # a number of numpy or torch
        return value.item()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
