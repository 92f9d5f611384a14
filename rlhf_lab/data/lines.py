"""Lines and blocks of uncompressed and gzip files, and errors that concern an entire file rather than one row.

A line has up to `MAX_ROW_BYTES`, and gzip data up to a multiple of its compressed size (`core/bounded_files.py`).
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlhf_lab.core import bounded_files
from rlhf_lab.core.errors import DataError


def file_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines without a byte-order mark. Damage raises DataError that states how far reading got."""
    number = 0
    limit = bounded_files.MAX_ROW_BYTES
    with _explained(file, "row", lambda: number), bounded_files.opened(file) as handle:
        # one byte more than the limit: enough to notice a line that is too long without reading all of it
        for number, line in enumerate(iter(partial(handle.readline, limit + 1), b""), start=1):
            if len(line) > limit:
                raise DataError(
                    f"{file}, row {number}: the line is longer than {bounded_files.size_text(limit)}, the maximum for "
                    "one row; put every row on a separate line, or shorten the row"
                )
            # only the first line can have a byte-order mark or magic bytes
            yield number, _check_start(file, line) if number == 1 else line


def text_blocks(file: Path) -> Iterator[str]:
    """Yield the text of a file in blocks, without a byte-order mark. Damage raises DataError."""
    # a character may be split between two blocks, so the decoder keeps its bytes
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = 0
    with _explained(file, "byte", lambda: start), bounded_files.opened(file) as handle:
        while block := handle.read(bounded_files.BLOCK_BYTES):
            yield _decode(decoder, _check_start(file, block) if start == 0 else block, start, file)
            start += len(block)
        yield _decode(decoder, b"", start, file)


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, start: int, file: Path) -> str:
    """Decode a block that starts at byte `start`. The empty last block checks that the text is complete."""
    # number of bytes of an incomplete character that the decoder kept from the block before
    held_back = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        byte = start - held_back + error.start + 1
        raise DataError(f"{file}: byte {byte} is not UTF-8; save the file as UTF-8") from error


@contextmanager
def _explained(file: Path, unit: str, count: Callable[[], int]) -> Iterator[None]:
    """Turn an error of reading or decompressing inside the `with` block into a DataError.

    Args:
        file: file that is read.
        unit: unit of `count`.
        count: returns how many units have been read so far.
    """
    try:
        yield
    except DataError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if isinstance(error, gzip.BadGzipFile) and not count():
            raise DataError(
                f"{file}: the name ends in .gz, but the content is not gzip; rename it to {file.stem} or compress it "
                "with gzip"
            ) from error
        raise DataError(
            f"{file}: the gzip data is damaged after {unit} {count()} ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{file}: cannot read the file ({error.strerror or error}); check its permissions") from error


def _check_start(file: Path, start: bytes) -> bytes:
    """Return the first bytes without a UTF-8 byte-order mark. Raise DataError if they belong to another format."""
    # the first bytes of formats that are often given a wrong name
    problem_of_magic = {
        b"\x1f\x8b": f"is gzip-compressed; rename it to {file.name}.gz",
        b"\xff\xfe": f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name}",
        b"\xfe\xff": f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name}",
        b"PAR1": "is Parquet; rename it to end in .parquet",
        b"PK\x03\x04": "is a zip archive or an Excel sheet; unpack it, or save the sheet as .csv (UTF-8)",
        b"version https://git-lfs": "is a git-lfs pointer, not the data; run: git lfs pull",
    }
    for magic, problem in problem_of_magic.items():
        if start.startswith(magic):
            raise DataError(f"{file}: the file {problem}")
    return start.removeprefix(b"\xef\xbb\xbf")
