"""A row of a data file and its problems. A problem names the field, its value, the expected form and the fix."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, TypeGuard

from rlhf_lab.core.errors import DataError

SHOWN = 20
"""Maximum number of different problems in an error message, and of row ranges per problem."""
LABELS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
LIST_OF_OBJECTS = re.compile(r"\s*\[\s*\{")
START_OF_MESSAGES = re.compile(r"""\s*\[\s*\{\s*['"](role|content)['"]\s*:""")


class SourceRow(NamedTuple):
    """One row and its location. `number` counts from 1; for a JSONL file it is the line."""

    file: str
    number: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UnreadableMessages:
    """Text that looks like a list of messages but is neither JSON nor Python notation."""

    text: str


class RowProblem(ValueError):
    """A row has an unexpected value. The message names the field, the value, the expected form and the fix."""


class MissingColumns(RowProblem):
    """A row lacks columns that the settings name. The message proposes other settings."""


class BadRows:
    """Collects the unreadable rows of one source.

    Args:
        source: the path as the user wrote it.
        limit: maximum number of bad rows (`data.max_bad_rows`).

    Attributes:
        repaired: (file, row number) of rows in which lone surrogates were replaced.
    """

    def __init__(self, source: str, limit: int = 0):
        self.source = source
        self.limit = limit
        self.count = 0
        self.repaired: list[tuple[str, int]] = []
        # (file, problem) → row numbers: equal problems of many rows are one line of the message
        self._rows: dict[tuple[str, str], list[int]] = {}

    def add(self, file: str, number: int, problem: str) -> None:
        """Record a bad row. Raise DataError once there are `SHOWN` rows more than the limit."""
        self.count += 1
        self._rows.setdefault((file, problem), []).append(number)
        # a wrong file has only bad rows: the first ones are enough for the message
        if self.count >= self.limit + SHOWN:
            raise self._build_error(stopped=True)

    def finish(self) -> None:
        """Raise DataError if the number of bad rows exceeds the limit."""
        if self.count > self.limit:
            raise self._build_error(stopped=False)

    def rows(self) -> list[tuple[str, int]]:
        """Return (file, row number) of every bad row."""
        return [(file, number) for (file, _), numbers in self._rows.items() for number in numbers]

    def _build_error(self, *, stopped: bool) -> DataError:
        count = f"{self.count} {'row' if self.count == 1 else 'rows'}"
        so_far = " (reading stopped there)" if stopped else ""
        lines = [f"{count} of {self.source} cannot be read{so_far}; data.max_bad_rows allows {self.limit}:"]
        for (file, problem), numbers in list(self._rows.items())[:SHOWN]:
            noun = "row" if len(numbers) == 1 else "rows"
            lines.append(f"  {file}, {noun} {_ranges_in_words(numbers)}: {problem}")
        # the total number is unknown if reading stopped early
        allowed = "N" if stopped else self.count
        lines.append(f"Correct the rows, or skip and count them with data.max_bad_rows={allowed}.")
        return DataError("\n".join(lines))


def _ranges_in_words(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: 1, 3, 4, 5 → "1, 3–5"; up to `SHOWN` ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    listed = ", ".join("–".join(map(str, bounds)) for bounds in ranges[:SHOWN])
    return listed + (", …" if len(ranges) > SHOWN else "")


def decoded_messages(value: str) -> Any:
    """Return the list of messages that a text encodes, or `UnreadableMessages`; any other text unchanged."""
    # a fast test first: few texts contain messages
    if "role" not in value or not LIST_OF_OBJECTS.match(value):
        return value
    # JSON first; pandas writes lists with single quotes, which only Python reads
    for parse in (json.loads, ast.literal_eval):
        try:
            items = parse(value.strip())
        except (ValueError, SyntaxError, RecursionError):
            continue
        return items if all(map(_is_message, items)) else value
    if START_OF_MESSAGES.match(value) and value.rstrip().endswith("}]"):
        # pandas writes an array without commas; inserting them could change what a message says
        return UnreadableMessages(value)
    return value


def _is_message(item: object) -> bool:
    # a message with tool calls may have no content
    return isinstance(item, dict) and "role" in item and ("content" in item or "tool_calls" in item)


def is_missing(value: object) -> bool:
    """Return True for null and NaN, with which tables (Parquet, the hub) fill missing values."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_text_list(value: object) -> TypeGuard[list[str]]:
    """Return True if a value is a list of texts, possibly an empty one."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def label_of(value: object) -> bool | None:
    """Return a label as a truth value; None if it is none. A .csv has it as text, and pandas may write 1.0."""
    return LABELS.get(str(value).strip().lower())


def describe(value: object) -> str:
    """Describe a value in words: its type and its beginning."""
    names = {str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    if value is None:
        return "null"
    if isinstance(value, UnreadableMessages):
        return (
            "messages that pandas wrote from an array, without commas between them (save the table as .parquet or "
            ".jsonl, or apply list() to the column before to_csv)"
        )
    type_name = names.get(type(value), type(value).__name__)
    text = repr(value)
    excerpt = text[:40] + "…" if len(text) > 40 else text
    return f"{type_name} {excerpt}"


def column(values: Mapping[str, Any], name: str) -> Any:
    """Return a column of a row. Raise RowProblem that lists the columns of the row.

    The message proposes no similar column, because it may mean the opposite. See `roles.columns_problem`.
    """
    if name in values:
        return values[name]
    listed = ", ".join(map(repr, values)) or "none"
    raise RowProblem(
        f"column {name!r} is missing; the row has {listed}; rename the column that contains it to {name!r}"
    )


def non_finite_problem(values: Mapping[str, Any]) -> str | None:
    """Return the problem text of a row of JSON with NaN or an infinite number; None if it has none.

    Python reads NaN, Infinity and 1e400, but they are not JSON, and the files that a run writes could not be read by
    other programs.
    """
    # a list of open values instead of recursion: a column may be nested more deeply than Python's stack
    pending: list[tuple[str, Any]] = [(repr(name), value) for name, value in values.items()]
    while pending:
        where, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return (
                f"column {where} is {value}, which JSON does not have; write null for a missing value, or a finite "
                "number"
            )
        if isinstance(value, dict):
            pending += [(f"{where}[{name!r}]", item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    return None


def text_column(values: Mapping[str, Any], name: str) -> str:
    """Return a text column of a row. Raise RowProblem if it is missing or not text."""
    value = column(values, name)
    if isinstance(value, str):
        return value
    raise RowProblem(f"column {name!r} is {describe(value)}; expected text")


def not_an_object(values: object) -> str:
    """Return the problem text of a row that is JSON but not an object."""
    return f'the row is {describe(values)}; expected an object like {{"chosen": …, "rejected": …}}'


LARGE = 2**16
"""Number of JSON characters above which the metadata of one row are noted, because those of all rows are in memory."""
TOO_LARGE = "large metadata columns; name those that rewards read with data.columns=[…]"
NOT_JSON = "a metadata column has a value that JSON cannot represent (bytes, an image) and is left out"
OTHER_FACTS = "same prompt as before, but other metadata: those of the first row are used"


def metadata_of(
    values: Mapping[str, Any], texts: Collection[str], columns: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return (column → JSON value, notes) of a row. Missing values (null, NaN) are left out.

    Args:
        texts: columns of the conversation, which are not metadata.

    Raises:
        RowProblem: a column that `columns` names is missing.
    """
    if columns is None:
        columns = [name for name in values if name not in texts]
    metadata: dict[str, Any] = {}
    notes = []
    size = 0
    for name in columns:
        value = column(values, name)
        if is_missing(value):
            continue
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            notes.append(NOT_JSON)
            continue
        size += len(text)
        metadata[name] = value
    if size > LARGE:
        notes.append(TOO_LARGE)
    return metadata, notes


def fingerprint_with_metadata(fingerprint: str, metadata: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a fingerprint that also covers the metadata of the corpus; unchanged if there are none."""
    # without metadata the fingerprint stays the one of the texts, so that stored runs keep their keys
    if not metadata:
        return fingerprint
    content = json.dumps(metadata, sort_keys=True)
    return sha256(f"{fingerprint} {content}".encode("utf-8", "surrogatepass")).hexdigest()
