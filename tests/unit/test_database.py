"""SQLite takes any text, and stores the replacement character for what UTF-8 cannot say."""

from __future__ import annotations

import sqlite3

from rlhf_lab.core.database import WellFormedConnection


def test_sqlite_takes_any_text():
    connection = sqlite3.connect(":memory:", factory=WellFormedConnection)
    connection.execute("CREATE TABLE t (text)")
    connection.execute("INSERT INTO t VALUES (?)", ("a\ud83d",))
    connection.executemany("INSERT INTO t VALUES (?)", [("b\0\ud83d",)])
    assert [text for (text,) in connection.execute("SELECT text FROM t")] == ["a\ufffd", "b\0\ufffd"]
    connection.close()
