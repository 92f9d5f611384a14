"""Lines of plain and gzip files, and the errors that concern a file as a whole rather than one of its rows."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from rlhf_lab.core.errors import DataError


def file_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, the first without a byte-order mark. Damage becomes a DataError that says how far reading got."""
    number = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb") as handle:
            for number, line in enumerate(handle, start=1):
                yield number, _check_first_line(file, line) if number == 1 else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        if number == 0 and isinstance(error, gzip.BadGzipFile):
            raise DataError(
                f"{file}: the name says gzip, the content is not; rename it to {file.stem} or compress it with gzip"
            ) from error
        raise DataError(
            f"{file}: the gzip data is damaged after row {number} ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error}); check its permissions") from error


def _check_first_line(file: Path, line: bytes) -> bytes:
    """The line without a UTF-8 byte-order mark. Raises DataError when its first bytes are those of another format."""
    problem_of_magic = {
        b"\x1f\x8b": f"is gzip-compressed; rename it to {file.name}.gz",
        b"\xff\xfe": f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name}",
        b"\xfe\xff": f"is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {file.name}",
        b"PAR1": "is Parquet; rename it to end in .parquet",
        b"PK\x03\x04": "is a zip archive or an Excel sheet; unpack it, or save the sheet as .csv (UTF-8)",
        b"version https://git-lfs": "is a git-lfs pointer, not the data; run: git lfs pull",
    }
    for magic, problem in problem_of_magic.items():
        if line.startswith(magic):
            raise DataError(f"{file}: the file {problem}")
    return line.removeprefix(b"\xef\xbb\xbf")
