"""Open files written by others within memory limits: regular files only, bounded file size and bounded row length.

A file that exceeds a limit raises a DataError that names the file, the limit and the remedy. `core/yaml_files.py` and
`core/files.py` parse YAML and JSON; both read their bytes through this module.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rlhf_lab.core.errors import DataError

MIB = 2**20
MAX_ROW_BYTES = 16 * MIB
"""Maximum bytes of one row of a JSONL file. Parsed JSON can need 24 times the memory of its text."""
MAX_LIST_LENGTH = 256 * MIB
"""Maximum number of characters of a JSON file with a list of rows, which is parsed at once."""
MAX_JSON_BYTES = 32 * MIB
"""Maximum bytes of a JSON file that is parsed at once, such as a model's config."""
MAX_GZIP_RATIO = 200
"""Maximum size of gzip data after decompression, relative to the compressed file. Text reaches 10 to 50; a file
crafted to fill memory reaches 1000."""
MIN_GZIP_BOUND = 64 * MIB
"""Number of decompressed bytes that are always read, regardless of the compression ratio."""
BLOCK_BYTES = MIB


def check_regular(file: Path) -> None:
    """Raise DataError for a directory, pipe or device; reading a pipe or device could block or never end.

    Raise FileNotFoundError for a missing file, as `open` does.
    """
    if file.is_dir():
        raise DataError(f"{file}: is a directory; name a file")
    if not file.is_file():
        file.stat()  # raises FileNotFoundError for a missing file, so that only pipes and devices remain
        raise DataError(f"{file}: is a pipe or device, not a file; save its content as a file and name that")


def read_bounded(file: Path, limit: int) -> bytes:
    """Return the content of a file. Raise DataError if it has more than `limit` bytes or is not a regular file."""
    check_regular(file)
    with file.open("rb") as handle:
        # One byte more than the limit shows that a file is too large. Its size on disk may change while it is read.
        content = handle.read(limit + 1)
    if len(content) > limit:
        raise DataError(f"{file}: has more than {size_text(limit)}, the maximum for such a file; name another file")
    return content


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size} bytes"


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and decompress it if its name ends in .gz. Raise DataError for a decompression bomb."""
    check_regular(file)
    with file.open("rb") as raw:
        if file.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(fileobj=raw) as decompressed:
            # A small file may compress extremely well, so the ratio does not apply below the minimum.
            bound = max(MIN_GZIP_BOUND, MAX_GZIP_RATIO * file.stat().st_size)
            yield io.BufferedReader(_Bounded(decompressed, file, bound))


class _Bounded(io.RawIOBase):
    """Stream of decompressed bytes that raises DataError once it has produced more than `bound` bytes."""

    def __init__(self, stream: gzip.GzipFile, file: Path, bound: int):
        self._stream = stream
        self._file = file
        self._bound = bound
        self._total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        # Count after each read, so that a bomb stops at the limit instead of after decompression.
        self._total += count
        if self._total > self._bound:
            raise DataError(
                f"{self._file}: decompresses to more than {size_text(self._bound)}, over {MAX_GZIP_RATIO} times the "
                "size of the file, which only a damaged file or a decompression bomb does; decompress it yourself "
                "and name the result if it is what you expect"
            )
        return count
