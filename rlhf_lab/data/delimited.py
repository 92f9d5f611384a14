"""Rows of .csv and .tsv files: RFC 4180 quoting, a header row, newlines inside quoted fields, UTF-8.

Every field is text, and an empty field is the empty text. A list of {role, content} messages is parsed from JSON, or
from the Python notation that pandas writes for lists. NumPy arrays as written by pandas are not supported. Rows are
numbered as in a spreadsheet: the header is row 1.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from rlhf_lab.core import bounded_files
from rlhf_lab.core.errors import DataError
from rlhf_lab.data.lines import file_lines
from rlhf_lab.data.rows import BadRows, SourceRow, decoded_messages

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
            values = map(decoded_messages, fields)
            yield SourceRow(str(file), number, dict(zip(header, values, strict=True)))


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
