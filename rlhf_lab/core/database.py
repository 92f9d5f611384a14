"""SQLite connections that accept any text: SQLite stores UTF-8, so a lone surrogate would abort the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from rlhf_lab.core.text import well_formed_value


class WellFormedConnection(sqlite3.Connection):
    """Connection that makes the texts in all statement parameters well-formed: `sqlite3.connect(factory=…)`."""

    # Only the parameters can contain foreign text; the SQL itself is written by rlhf_lab.
    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().execute(sql, well_formed_value(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().executemany(sql, map(well_formed_value, parameters))
