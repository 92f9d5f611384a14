"""SQLite connections that accept any text: SQLite stores UTF-8, so a lone surrogate would abort the transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlhf_lab.core.text import well_formed_value

RETRY_S = 0.05
"""Seconds between two attempts to turn on write-ahead logging."""


class WellFormedConnection(sqlite3.Connection):
    """Connection that makes the texts in all statement parameters well-formed: `sqlite3.connect(factory=…)`."""

    # Only the parameters can contain foreign text; the SQL itself is written by rlhf_lab.
    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().execute(sql, well_formed_value(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().executemany(sql, map(well_formed_value, parameters))


def write_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Turn on write-ahead logging, so that readers continue while another process writes.

    SQLite ignores the timeout of a connection if two of them do this with a new file at the same time, so this function
    retries. Raise sqlite3.OperationalError if the file is still locked after `patience_s` seconds.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(RETRY_S)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Open a transaction: one writer at a time, so what it reads stays true. It is rolled back if the block fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite rolls back by itself if the disk is full
            connection.execute("ROLLBACK")
        raise
