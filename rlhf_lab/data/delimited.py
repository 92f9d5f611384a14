"""Rows of .csv and .tsv files: RFC 4180 quoting, a header row, newlines inside quoted fields, UTF-8.

Every field is text, and an empty one is the empty text. A list of {role, content} messages is read from its JSON, or
from the Python notation that pandas writes. Rows are numbered as a spreadsheet numbers them: the header is row 1.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.data.lines import file_lines
from rlhf_lab.data.rows import BadRows, Row

DELIMITERS = {".csv": ",", ".tsv": "\t"}
LARGEST_FIELD = 2**31 - 1
"""Characters. Python's own limit, 131072, is less than a long conversation."""


def read_delimited(file: Path, bad: BadRows) -> Iterator[Row]:
    """Stream the rows of a file with a header. Raises DataError for a file without a usable header."""
    delimiter = DELIMITERS[Path(file.name.removesuffix(".gz")).suffix]
    csv.field_size_limit(LARGEST_FIELD)
    # Bytes that are not UTF-8 are kept as surrogates until the row and the field that hold them are known.
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
            yield Row(str(file), number, dict(zip(header, map(_parse_field, fields), strict=True)))


def _quoting_problem(reason: str) -> str:
    if "unexpected end" in reason:
        return "a quoted field that begins in this row is never closed; close it, and double a quote inside a field"
    return f'broken quoting ({reason}); put the field in quotes and double a quote inside it: "say ""hi"""'


def _checked_header(file: Path, names: list[str], delimiter: str) -> list[str]:
    """The names of the columns, stripped. Raises DataError when they cannot name columns."""
    names = [name.strip() for name in names]
    actual = next((mark for mark in (";", "\t", ",") if mark != delimiter and mark in names[0]), None)
    if len(names) == 1 and actual:
        raise DataError(
            f"{file}: the header is the one column {names[0]!r}; fields of a {file.name.removesuffix('.gz')[-4:]} file "
            f"are separated by {delimiter!r}, not by {actual!r}; save it with {delimiter!r} between the fields"
        )
    if "" in names:
        raise DataError(f"{file}: column {names.index('') + 1} of the header has no name; name it or remove it")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{file}: the header has {', '.join(map(repr, repeated))} more than once; rename one of them")
    return names


def _fields_problem(header: list[str], fields: list[str], delimiter: str) -> str | None:
    """What is wrong with the fields of a row, or None."""
    if len(fields) != len(header):
        return (
            f"the row has {len(fields)} fields and the header has {len(header)}; "
            f"put a field that holds {delimiter!r} or a line break in quotes"
        )
    for name, field in zip(header, fields, strict=True):
        try:
            field.encode("utf-8")
        except UnicodeEncodeError as error:
            byte = ord(field[error.start]) - 0xDC00  # "surrogateescape" decodes byte 0xNN as U+DCNN
            return f"column {name!r} has the byte 0x{byte:02x}, not UTF-8; save the file as UTF-8"
    return None


def _parse_field(field: str) -> Any:
    """The text of a field, or the list of messages that it writes down."""
    if not field.startswith("[{") or "role" not in field:  # a cheap test first: most fields are plain text
        return field
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(field)
        except (ValueError, SyntaxError, RecursionError):
            continue
        if all(isinstance(item, dict) and "role" in item and "content" in item for item in value):
            return value
    return field
