"""Files that are complete or absent: written under a temporary name, flushed to disk, then renamed.

Disk errors become a StorageError that says what to do.

If several processes work on one stage, only the main process writes (`only_main_writes`). In the other processes every
function that writes does nothing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.core.bounded_files import MAX_JSON_BYTES, MAX_ROW_BYTES, check_regular, read_bounded, size_text
from rlhf_lab.core.errors import ArtifactError, ConfigError, StorageError
from rlhf_lab.core.text import is_well_formed, well_formed, well_formed_value

REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there or raise the quota",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "make it writable or choose another directory with outputs=DIR",
    errno.EIO: "check the disk, which reports errors",
}
"""Disk error → what the user can do about it."""
PERMISSION = dict.fromkeys(
    (errno.EACCES, errno.EPERM), "give this user permission to write there or choose another directory with outputs=DIR"
)
"""Error for a missing permission → what the user can do about it. Such an error also occurs when a file is read, so it
counts as a refused write only if the caller knows that a file was being written."""
MAX_DEPTH = 100
"""Maximum nesting depth of lists and objects in JSON. Python's own limit depends on its version and on the call stack,
and copying or writing a value takes several calls per level."""
TOO_DEEP = f"the JSON is nested too deeply; expected at most {MAX_DEPTH} levels"

_writes = True
"""False in the processes of a stage that do not write files; see `only_main_writes`."""


def only_main_writes(is_main: bool) -> None:
    """Allow this process to write files only if it is the main process of its stage."""
    global _writes
    _writes = is_main


def short_path(path: Path) -> Path:
    """Return a path relative to the working directory if it lies in that directory, else unchanged."""
    working_dir = Path.cwd()
    return path.relative_to(working_dir) if path.is_relative_to(working_dir) else path


@contextmanager
def replacing(path: Path, *, every_process: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; its content replaces `path` if the block succeeds.

    Raise StorageError if the disk refuses the write; `path` is then unchanged.

    Args:
        every_process: True to write also in a process that is not the main one.
    """
    # Host and process id make the name unique among processes that share a disk, and show later who abandoned it.
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.part")
    with explained(path):
        _remove_abandoned(path)
        _remove(temporary)
        try:
            yield temporary
            if not _writes and not every_process:
                return
            # Flush the contents to disk before renaming; otherwise a power cut could leave an empty file.
            for file in [temporary] if temporary.is_file() else sorted(temporary.rglob("*")):
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
            if temporary.is_dir():
                _remove(path)  # a directory cannot be renamed onto one that contains files
            os.replace(temporary, path)
        finally:
            _remove(temporary)


def _remove_abandoned(path: Path) -> None:
    """Delete temporary files of `path` that killed processes of this machine left behind."""
    if not path.parent.is_dir():
        return
    prefix = f".{path.name}.{socket.gethostname()}-"
    for temporary in path.parent.glob(f"{prefix}*.part"):
        process = temporary.name.removeprefix(prefix).removesuffix(".part")
        if process.isdigit() and not _is_running(int(process)):
            _remove(temporary)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # the process exists but belongs to another user
        return True
    return True


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert a disk error in the block into a StorageError that says what to do; let other errors pass."""
    try:
        yield
    except Exception as error:
        explanation = storage_error(error, path)
        if explanation is None or explanation is error:
            raise
        raise explanation from error


def storage_error(error: BaseException, path: Path | None = None) -> StorageError | None:
    """Return the error as a StorageError if a full, read-only or broken disk caused it, else None.

    Args:
        path: file that was being written. Without it the message names the error's own file, and a missing permission
            is not explained because the file may have been read.
    """
    if isinstance(error, StorageError):
        return error
    remedies = REMEDIES | PERMISSION if path else REMEDIES
    cause: BaseException | None = error
    while cause is not None:  # libraries wrap disk errors in errors of their own
        number = cause.errno if isinstance(cause, OSError) else _rust_errno(cause)
        if number in remedies:
            location = path or getattr(cause, "filename", None) or "a file"
            return StorageError(
                f"{location} cannot be written: {os.strerror(number)}; {remedies[number]}, then give the same command "
                "again: it resumes from what is saved"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def _rust_errno(error: BaseException) -> int | None:
    """Return the error number in a message of safetensors or tokenizers: "No space left on device (os error 28)"."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match.group(1)) if match else None


def make_dir(path: Path) -> None:
    """Create a directory and its parents. Raise StorageError if the disk refuses it or the name is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"  # e.g. below /proc, where not even root can create directories
        refused = StorageError(f"{path} cannot be created ({reason}); choose another directory with outputs=DIR")
        raise storage_error(error, path) or refused from error


def check_outputs(directory: Path, *, writes: bool = True) -> None:
    """Raise ConfigError if `outputs` cannot be a directory or is not writable. Create nothing.

    Args:
        writes: True if anything will be written; finished runs can also be read from a read-only disk.
    """
    # The directory itself or its nearest existing parent. `lexists`, because a dangling link also blocks the name.
    existing = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
    location = f"outputs={directory}" if existing == directory else f"outputs={directory}: {existing}"
    if not existing.is_dir():
        kind = "a link to nothing" if existing.is_symlink() and not existing.exists() else "a file"
        raise ConfigError(f"{location} is {kind}; write outputs=DIR with the name of a new or existing directory")
    # The limit counts bytes, not characters, and depends on the file system.
    max_length = os.pathconf(existing, "PC_NAME_MAX")
    for name in directory.parts:
        length = len(os.fsencode(name))
        if length > max_length:
            raise ConfigError(
                f"outputs: the name {name[:20]}… has {length} bytes, but {existing} allows at most {max_length}; write "
                "outputs=DIR with shorter names"
            )
    if writes and not os.access(existing, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        reason = errno.EROFS if is_read_only else errno.EACCES
        raise ConfigError(f"{location} cannot be written to: {os.strerror(reason)}; {(REMEDIES | PERMISSION)[reason]}")


def write_text(path: Path, text: str) -> None:
    """Write a text. Lone surrogates become U+FFFD, because a report must not fail because of one character."""
    if not _writes:
        return
    with replacing(path) as temporary:
        temporary.write_text(well_formed(text), encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes; `path` is complete or unchanged afterwards."""
    if not _writes:
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON; see `json_text`."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the JSON text that `write_json` writes."""
    return json.dumps(value, indent=1, sort_keys=False, default=_encode) + "\n"


def finite_values(value: Any) -> Any:
    """Return a value as JSON has it, with None in place of NaN and infinite numbers, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_values(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return finite_values(_encode(value))


def json_lines(rows: Iterable[Mapping[str, Any]], *, ensure_ascii: bool = True) -> str:
    """Return rows as JSON Lines. `ensure_ascii=False` keeps other characters than ASCII readable."""
    return "".join(json.dumps(row, ensure_ascii=ensure_ascii) + "\n" for row in rows)


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value as JSON. It does not change when the value is written and read again."""
    return sha256(json.dumps(value, default=_encode).encode()).hexdigest()


def file_digest(path: Path, start: int = 0, end: int | None = None) -> str:
    """Return the SHA-256 of a file's bytes from `start` to `end`, or to the end of the file if that comes first."""
    digest = sha256()
    bytes_left = path.stat().st_size - start if end is None else end - start
    # Read 1 MiB at a time, because model files do not fit into memory.
    with path.open("rb") as handle:
        handle.seek(start)
        while bytes_left > 0 and (block := handle.read(min(bytes_left, 2**20))):
            digest.update(block)
            bytes_left -= len(block)
    return digest.hexdigest()


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse a JSON text from an outside source and make its strings well-formed. Raise ValueError if it is not valid.

    The error is a json.JSONDecodeError if it has a position in the text. Without this function the standard library
    raises RecursionError for deep nesting, and for a long integer it explains how to raise a limit of Python.

    Args:
        options: keyword arguments of `json.loads`.
    """
    value = parse_json_as_written(text, **options)
    return well_formed_value(value) if _may_hold_surrogates(text) else value


def parse_json_as_written(text: str | bytes, **options: Any) -> Any:
    """Parse like `parse_json`, but leave lone surrogates in strings: the caller counts and replaces them."""
    try:
        value = json.loads(text, **options)
    except ValueError as error:
        raise _explained_json(error) from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if not _is_flat(value):
        _check_json_depth(value, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return value


def _may_hold_surrogates(text: str | bytes) -> bool:
    """Return False if no string can have a lone surrogate. JSON writes one as the escape \\ud800 to \\udfff."""
    # This cheap test saves walking through many values.
    if isinstance(text, bytes):  # `json.loads` also accepts the bytes that UTF-8 would use for a surrogate
        return True
    return "\\ud" in text or "\\uD" in text or not is_well_formed(text)


def _explained_json(error: ValueError) -> ValueError:
    """Return the parser's error if it names a position; otherwise an error that says an integer is too long."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return error
    limit = sys.get_int_max_str_digits()
    return ValueError(f"the JSON has an integer of more than {limit} digits; write it as a text")


_SCALARS = frozenset({str, int, float, bool, type(None)})
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")
"""All bytes except brackets: `bytes.translate` deletes them, which counts the brackets of a text quickly."""


def _is_flat(value: Any) -> bool:
    """Return True for an object without nested lists and objects, the usual form of a row."""
    return type(value) is dict and _SCALARS.issuperset(map(type, value.values()))


def _check_json_depth(value: Any, text: bytes) -> None:
    """Raise ValueError for a value with more than `MAX_DEPTH` nested lists and objects.

    Every level has two brackets, so a text with few brackets does not need a walk through its value.
    """
    if len(text.translate(None, _NO_BRACKETS)) <= 2 * MAX_DEPTH:
        return
    # Walk level by level instead of recursively, so that Python's recursion limit does not matter.
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            items = each.values() if type(each) is dict else each
            inner += [item for item in items if type(item) in (dict, list)]
        level = inner
        if not level:
            return
    raise ValueError(TOO_DEEP)


def read_json(path: Path) -> Any:
    """Return the parsed file, or None if it is missing, too large or not valid JSON."""
    try:
        return parse_json(read_bounded(path, MAX_JSON_BYTES).decode("utf-8"))
    except (OSError, ValueError):  # a DataError is a ValueError
        return None


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing, too large, not valid JSON or not an object."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def append_jsonl(path: Path, rows: list[dict[str, Any]]) -> int:
    """Append rows and return the new size of the file. First remove an incomplete last line, left by a killed process.

    Raise StorageError if the disk refuses the write; some of the rows may then be in the file.
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
        if handle.read(1) != b"\n":  # check the last byte first, so that a complete file need not be read
            handle.seek(0)
            handle.truncate(handle.read().rfind(b"\n") + 1)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file written by `append_jsonl`. A missing file has none; an incomplete last line is skipped.

    Raise ArtifactError naming the line that is not a row.
    """
    rows, _, rejected = _parse_rows(path)
    # A line without its end is the last line: another process is still writing it, or was interrupted.
    complete = rejected.endswith(b"\n") or len(rejected) == MAX_ROW_BYTES
    if complete:
        raise ArtifactError(
            f"{path} is damaged: line {len(rows) + 1} is not a JSON object, or is longer than "
            f"{size_text(MAX_ROW_BYTES)}; restore the file from a copy, or delete that line to continue without it"
        )
    return rows


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a JSONL file up to the first incomplete or invalid line, and the end offset of each row."""
    rows, ends, _ = _parse_rows(path)
    return rows, ends


def _parse_rows(path: Path) -> tuple[list[dict[str, Any]], list[int], bytes]:
    """Return what `read_rows` returns, and the first line that is no row (empty if all lines are rows)."""
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    if not path.exists():
        return rows, ends, b""
    check_regular(path)
    end = 0
    with path.open("rb") as handle:
        # `readline` splits a line that exceeds the limit, so it is not a valid row.
        for line in iter(partial(handle.readline, MAX_ROW_BYTES), b""):
            try:
                row = parse_json(line.decode("utf-8")) if line.endswith(b"\n") else None
            except ValueError:  # not JSON, or not UTF-8
                row = None
            if not isinstance(row, dict):
                return rows, ends, line
            end += len(line)
            rows.append(row)
            ends.append(end)
    return rows, ends, b""


def truncate(path: Path, size: int) -> None:
    """Truncate a log to the size it had at a checkpoint."""
    if _writes and path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


def _encode(value: Any) -> Any:
    """Convert a value that JSON does not support."""
    if hasattr(value, "item"):  # a scalar of numpy or torch
        return value.item()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
