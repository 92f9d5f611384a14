"""SQLite takes any text, and stores the replacement character for what UTF-8 cannot say."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from rlhf_lab.core.database import WellFormedConnection, write_ahead


def test_sqlite_takes_any_text():
    connection = sqlite3.connect(":memory:", factory=WellFormedConnection)
    connection.execute("CREATE TABLE t (text)")
    connection.execute("INSERT INTO t VALUES (?)", ("a\ud83d",))
    connection.executemany("INSERT INTO t VALUES (?)", [("b\0\ud83d",)])
    assert [text for (text,) in connection.execute("SELECT text FROM t")] == ["a\ufffd", "b\0\ufffd"]
    connection.close()


@pytest.fixture
def locked(tmp_path):
    """A file that another connection has locked, and a connection to it that does not wait by itself."""
    path = tmp_path / "new.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    yield other, connection
    connection.close()
    other.close()


def test_write_ahead_logging_waits_for_a_locked_file_as_long_as_it_may(locked):
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write_ahead(locked[1], patience_s=0.0)
    other, connection = locked
    release = threading.Timer(0.2, other.execute, ["COMMIT"])
    release.start()
    write_ahead(connection, patience_s=30.0)
    release.join()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
