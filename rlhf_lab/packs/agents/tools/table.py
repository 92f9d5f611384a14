"""Tables that are read by SQL: a query can neither change them, nor reach anything else, nor run for long.

A query runs in a new database in memory. An authorizer lets it read these tables and call a few functions; a count of
the virtual machine's instructions, not a clock, ends it, so that the same query ends alike everywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from rlhf_lab.core.tools import Tool, ToolError, text_tool

Cell = str | int | float | None

MOST_ROWS = 20
MOST_INSTRUCTIONS = 1_000_000
"""Of SQLite's virtual machine: about 50 ms."""
LONGEST_TEXT = 10_000
"""Characters of a query, and bytes of any value in it."""
LONGEST_PATTERN = 100
"""Characters of a LIKE pattern; matching a long one can take exponentially long."""
AGGREGATES = ("avg", "count", "group_concat", "max", "min", "sum", "total")
OF_TEXT = ("instr", "length", "like", "lower", "ltrim", "replace", "rtrim", "substr", "substring", "trim", "upper")
OF_VALUES = ("abs", "coalesce", "ifnull", "iif", "nullif", "round")
FUNCTIONS = frozenset((*AGGREGATES, *OF_TEXT, *OF_VALUES))
"""What a query may call, in small letters."""


@dataclass(frozen=True)
class Table:
    """Attributes:
    columns: their names.
    rows: values in the order of the columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class TableBase:
    """Attributes:
    tables: name → table.
    """

    tables: Mapping[str, Table]

    def schema(self) -> str:
        """One line a table: `lakes(name, depth_m): 4 rows`."""
        lines = [f"{name}({', '.join(table.columns)}): {len(table.rows)} rows" for name, table in self.tables.items()]
        return "\n".join(lines)

    def query(self, statement: str) -> str:
        """A line of column names, then a line a row, values divided by " | "; "no rows" where there is none.

        Raises ToolError for anything but one SELECT of these tables that ends soon.
        """
        with closing(self._connect()) as connection:
            try:
                cursor = connection.execute(statement)
                rows = cursor.fetchmany(MOST_ROWS + 1)
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise ToolError(self._explain(error)) from None
            if cursor.description is None:
                raise ToolError("only SELECT is allowed here")
            columns = [column[0] for column in cursor.description]
        if not rows:
            return "no rows"
        lines = [" | ".join(columns), *(" | ".join(map(written_cell, row)) for row in rows[:MOST_ROWS])]
        if len(rows) > MOST_ROWS:
            lines.append(f"(only the first {MOST_ROWS} rows; add a condition or a LIMIT)")
        return "\n".join(lines)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:")
        for name, table in self.tables.items():
            columns = ", ".join(map(quoted, table.columns))
            connection.execute(f"CREATE TABLE {quoted(name)} ({columns})")
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", table.rows)
        connection.commit()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LONGEST_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)
        connection.set_authorizer(self._authorize)
        # a handler that returns anything but 0 interrupts the query
        connection.set_progress_handler(lambda: 1, MOST_INSTRUCTIONS)
        return connection

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        """What SQLite asks before each thing that a query would do."""
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        # reading no column, as count(*) does, names the table too; a sub-query's own name is "" or no table
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
            return f"only SELECT from {', '.join(self.tables)} is allowed here"
        return f"SQL error: {message}"


def written_cell(value: Cell | bytes) -> str:
    """A value as it is shown; a missing one is NULL."""
    if value is None:
        return "NULL"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def table_tools(base: TableBase) -> list[Tool]:
    return [
        text_tool("schema", "Shows the tables and the names of their columns.", {}, base.schema),
        text_tool("sql", "Reads the tables with one SELECT statement.", {"statement": "one SELECT"}, base.query),
    ]
