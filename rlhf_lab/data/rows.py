"""A row of a data file and its problems. A problem names the field, what was found, what is expected and the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_lab.core.errors import DataError

SHOWN = 20
"""Different problems listed in an error, and ranges of rows per problem."""


class Row(NamedTuple):
    """One row and where it stands; `number` counts from 1 and is the line in a JSONL file."""

    file: str
    number: int
    values: dict[str, Any]


class RowProblem(ValueError):
    """A row's value is not what it should be. The message names field, found, expected and the fix."""


class MissingColumns(RowProblem):
    """A row lacks columns that the settings name. The message proposes other settings."""


class BadRows:
    """Collects unreadable rows of one source.

    Args:
        source: the path as the user wrote it.
        limit: how many bad rows are tolerated (`data.max_bad_rows`).
    """

    def __init__(self, source: str, limit: int = 0):
        self.source = source
        self.limit = limit
        self.count = 0
        self._rows: dict[tuple[str, str], list[int]] = {}

    def add(self, file: str, number: int, problem: str) -> None:
        """Record a bad row. Raises DataError once the limit and the longest useful list are passed."""
        self.count += 1
        self._rows.setdefault((file, problem), []).append(number)
        if self.count >= self.limit + SHOWN:
            raise self._build_error(stopped=True)

    def finish(self) -> None:
        """Raise DataError when more rows were bad than are tolerated."""
        if self.count > self.limit:
            raise self._build_error(stopped=False)

    def rows(self) -> list[tuple[str, int]]:
        """(file, row number) of every bad row."""
        return [(file, number) for (file, _), numbers in self._rows.items() for number in numbers]

    def _build_error(self, *, stopped: bool) -> DataError:
        count = f"{self.count} {'row' if self.count == 1 else 'rows'}"
        so_far = " (reading stopped there)" if stopped else ""
        lines = [f"{count} of {self.source} cannot be read{so_far}; data.max_bad_rows allows {self.limit}:"]
        for (file, problem), numbers in list(self._rows.items())[:SHOWN]:
            noun = "row" if len(numbers) == 1 else "rows"
            lines.append(f"  {file}, {noun} {_ranges_in_words(numbers)}: {problem}")
        allowed = "N" if stopped else self.count
        lines.append(f"Correct the rows, or have them counted and skipped with data.max_bad_rows={allowed}.")
        return DataError("\n".join(lines))


def _ranges_in_words(numbers: Sequence[int]) -> str:
    """Ascending numbers in words: 1, 3, 4, 5 → "1, 3–5"; at most `SHOWN` ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    listed = ", ".join("–".join(map(str, bounds)) for bounds in ranges[:SHOWN])
    return listed + (", …" if len(ranges) > SHOWN else "")


def describe(value: object) -> str:
    """A found value in words: type and beginning."""
    names = {str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    if value is None:
        return "null"
    type_name = names.get(type(value), type(value).__name__)
    text = repr(value)
    excerpt = text[:40] + "…" if len(text) > 40 else text
    return f"{type_name} {excerpt}"


def column(values: Mapping[str, Any], name: str) -> Any:
    """A row's column. Raises RowProblem with the columns there are.

    No column that is there is proposed: one that only looks alike may mean the opposite. See `roles.columns_problem`.
    """
    if name in values:
        return values[name]
    listed = ", ".join(map(repr, values)) or "none"
    raise RowProblem(f"column {name!r} is missing; the row has {listed}; rename the column that holds it to {name!r}")


def text_column(values: Mapping[str, Any], name: str) -> str:
    """A row's text column. Raises RowProblem when it is missing or not text."""
    value = column(values, name)
    if isinstance(value, str):
        return value
    raise RowProblem(f"column {name!r} is {describe(value)}; expected text")


def not_an_object(values: object) -> str:
    """Problem text for a row that is JSON but not an object."""
    return f'the row is {describe(values)}; expected an object like {{"chosen": …, "rejected": …}}'
