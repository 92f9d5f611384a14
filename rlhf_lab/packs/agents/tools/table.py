"""Tables that are read with SQL. A query cannot change them, cannot access anything else, and cannot run for long.

A query runs in a new in-memory database. An authorizer allows it to read these tables and to call a few functions. The
time limit counts instructions of the virtual machine instead of seconds, so that the same query has the same result on
every machine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TypedDict

from rlhf_lab.core.tools import Tool, ToolError, text_tool

Cell = str | int | float | None

MOST_ROWS = 20  # of a result, so that it fits into a small model's context
MOST_INSTRUCTIONS = 1_000_000
"""Maximum number of instructions of SQLite's virtual machine: about 50 ms."""
LONGEST_TEXT = 10_000
"""Maximum number of characters of a query, and of bytes of any value in it."""
LONGEST_PATTERN = 100
"""Maximum number of characters of a LIKE pattern; matching a long pattern can take exponential time."""
AGGREGATES = ("avg", "count", "group_concat", "max", "min", "sum", "total")
OF_TEXT = ("instr", "length", "like", "lower", "ltrim", "replace", "rtrim", "substr", "substring", "trim", "upper")
OF_VALUES = ("abs", "coalesce", "ifnull", "iif", "nullif", "round")
FUNCTIONS = frozenset((*AGGREGATES, *OF_TEXT, *OF_VALUES))
"""Functions that a query may call, in lower case."""


class DataTable(TypedDict):
    """A table: names of its columns, and rows of values in their order."""

    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class TableBase:
    """Tables that queries can read.

    Attributes:
        tables: name → table.
    """

    tables: Mapping[str, DataTable]

    def schema(self) -> str:
        """Describe each table as a line: `lakes(name, depth_m): 4 rows`."""
        lines = [
            f"{name}({', '.join(table['columns'])}): {len(table['rows'])} rows" for name, table in self.tables.items()
        ]
        return "\n".join(lines)

    def query(self, statement: str) -> str:
        """Return a line of column names, then one line per row, with " | " between values; "no rows" if there are none.

        Raise ToolError for anything but one SELECT from these tables that finishes within the limit.
        """
        # A new database for each query, so nothing remains of the last one.
        with closing(self._connect()) as connection:
            try:
                cursor = connection.execute(statement)
                rows = cursor.fetchmany(MOST_ROWS + 1)  # one more row, to notice that there are more
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise ToolError(self._explain(error)) from None
            if cursor.description is None:
                raise ToolError("only SELECT is allowed here")
            columns = [column[0] for column in cursor.description]
        if not rows:
            return "no rows"
        lines = [" | ".join(columns)]
        lines.extend(" | ".join(map(written_cell, row)) for row in rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            lines.append(f"(only the first {MOST_ROWS} rows; add a condition or a LIMIT)")
        return "\n".join(lines)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:")
        for name, table in self.tables.items():
            columns = ", ".join(map(quoted, table["columns"]))
            connection.execute(f"CREATE TABLE {quoted(name)} ({columns})")
            marks = ", ".join("?" * len(table["columns"]))
            connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", table["rows"])
        connection.commit()
        # The limits are set after the tables are filled, so they restrict only the query.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LONGEST_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)
        connection.set_authorizer(self._authorize)
        # The handler is called after this number of instructions; a value other than 0 interrupts the query.
        connection.set_progress_handler(lambda: 1, MOST_INSTRUCTIONS)
        return connection

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """Decide whether a query may do something. SQLite asks before each operation."""
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        # count(*) reads no column, but SQLite still names the table. For a sub-query the name is "" or not a table.
        if action == sqlite3.SQLITE_READ and (not first or first in self.tables):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _explain(self, error: Exception) -> str:
        message = str(error)
        if "interrupted" in message:
            return "the query took too long; ask for less"
        if "not authorized" in message or "prohibited" in message:
            names = ", ".join(self.tables)
            return f"only SELECT from {names} is allowed here"
        return f"SQL error: {message}"


def written_cell(value: Cell | bytes) -> str:
    """Format a value; a missing one is NULL."""
    if value is None:
        return "NULL"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def table_tools(base: TableBase) -> list[Tool]:
    return [
        text_tool("schema", "Shows the tables and the names of their columns.", {}, base.schema),
        text_tool("sql", "Reads the tables with one SELECT statement.", {"statement": "one SELECT"}, base.query),
    ]
