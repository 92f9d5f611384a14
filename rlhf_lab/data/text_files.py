"""Text files, uncompressed or gzip: lines and blocks, the rows of .csv and .tsv files, and the value of a JSON file.

A line has up to `MAX_ROW_BYTES`, and gzip data up to a multiple of its compressed size (`core/bounded_files.py`).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_lab.core import bounded_files
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json_as_written
from rlhf_lab.data.rows import BadRows, SourceRow, decoded_messages


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


# CSV: RFC 4180 quoting, a header row (row 1), newlines inside quoted fields. Every field is text. A list of messages is
# parsed from JSON, or from the Python notation that pandas writes for lists, but not for NumPy arrays.
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_delimited(file: Path, bad: BadRows) -> Iterator[SourceRow]:
    """Stream the rows of a file with a header. Raise DataError if the header is unusable."""
    delimiter = DELIMITERS[Path(file.name.removesuffix(".gz")).suffix]
    csv.field_size_limit(bounded_files.MAX_ROW_BYTES)  # Python's default, 131072, is too small for long conversations
    # Bytes that are not UTF-8 become surrogates here, so that the error message can name the row and the field.
    text = (line.decode("utf-8", "surrogateescape") for _, line in file_lines(file))
    records = csv.reader(text, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    number = 0
    while True:
        number += 1
        try:
            fields = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            bad.add(str(file), number, _quoting_problem(str(error)))
            continue
        if not fields:  # a blank line
            continue
        if header is None:
            header = _checked_header(file, fields, delimiter)
            continue
        problem = _fields_problem(header, fields, delimiter)
        if problem:
            bad.add(str(file), number, problem)
        else:
            yield SourceRow(str(file), number, dict(zip(header, map(decoded_messages, fields), strict=True)))


def _quoting_problem(reason: str) -> str:
    if "field limit" in reason:
        size = bounded_files.size_text(bounded_files.MAX_ROW_BYTES)
        return f"a field is longer than {size}; shorten it, or close the quote that opens it"
    if "unexpected end" in reason:
        return "a quoted field that starts in this row is never closed; close it, and double a quote inside a field"
    return f'the quoting is broken ({reason}); put the field in quotes and double a quote inside it: "say ""hi"""'


def _checked_header(file: Path, names: list[str], delimiter: str) -> list[str]:
    """Return the column names without surrounding spaces. Raise DataError if they cannot be column names."""
    names = [name.strip() for name in names]
    # a header of one column that contains another delimiter was probably saved with the wrong one
    others = [mark for mark in (";", "\t", ",") if mark != delimiter]
    actual = next((mark for mark in others if mark in names[0]), None)
    if len(names) == 1 and actual:
        raise DataError(
            f"{file}: the header has only the column {names[0]!r}; fields of a {file.name.removesuffix('.gz')[-4:]} "
            f"file are separated by {delimiter!r}, not by {actual!r}; save it with {delimiter!r} between the fields"
        )
    if "" in names:
        raise DataError(f"{file}: column {names.index('') + 1} of the header has no name; name it or remove it")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{file}: the header has {', '.join(map(repr, repeated))} more than once; rename one of them")
    return names


def _fields_problem(header: list[str], fields: list[str], delimiter: str) -> str | None:
    """Return a description of the problem with the fields of a row, or None."""
    if len(fields) != len(header):
        return (
            f"the row has {len(fields)} fields and the header has {len(header)}; "
            f"put quotes around a field that contains {delimiter!r} or a line break"
        )
    for name, field in zip(header, fields, strict=True):
        try:
            field.encode("utf-8")
        except UnicodeEncodeError as error:
            byte = ord(field[error.start]) - 0xDC00  # "surrogateescape" decodes byte 0xNN as U+DCNN
            return f"column {name!r} contains the byte 0x{byte:02x}, which is not UTF-8; save the file as UTF-8"
    return None


def is_json_list(file: Path) -> bool:
    """Return True if the first character of a file that is not white space is "["."""
    starts = (block.lstrip(" \t\n\r")[:1] for block in text_blocks(file))
    return next(filter(None, starts), "") == "["


def is_json_lines(file: Path) -> bool:
    """Return True if a file has several lines, and the first of them is a complete JSON value."""
    lines = (line for _, line in file_lines(file) if line.strip())
    first, second = next(lines, b""), next(lines, b"")
    try:
        parse_json_as_written(first.decode("utf-8"))
    except ValueError:
        return False
    return bool(second)


def read_json_file(file: Path) -> Any:
    """Parse a file that is one JSON value, with up to `MAX_LIST_LENGTH` characters. Raise DataError if it is not."""
    blocks = []
    length = 0
    for block in text_blocks(file):
        blocks.append(block)
        length += len(block)
        if length > bounded_files.MAX_LIST_LENGTH:
            raise DataError(
                f"{file}: has more than {bounded_files.size_text(bounded_files.MAX_LIST_LENGTH)}, the maximum for JSON "
                "that is parsed at once; convert it to JSON Lines, one object per line, in a file that ends in .jsonl"
            )
    try:
        return parse_json_as_written("".join(blocks))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}: broken JSON in line {error.lineno}, column {error.colno} ({error.msg}); "
            "expected a list of objects, or one object per line"
        ) from error
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
