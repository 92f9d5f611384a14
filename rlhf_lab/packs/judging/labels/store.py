"""Labels on disk: SQLite, in which every answer is an event that is appended and never changed.

    items     what was shown, as JSON; `place` is its place in the order of the last start, null where it was not drawn
    events    label, skip or undo; an undo names the event that it takes back, and nothing is deleted
    standing  the view that counts: labels and skips that no undo takes back

An event is on disk when `label` or `undo` returns: the write-ahead log is flushed at every commit (synchronous=FULL).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.files import make_folder
from rlhf_lab.packs.judging.labels.items import Item

APPLICATION, VERSION = 0x524C4142, 1
"""Written into the file ("RLAB"), so that another program's database is not taken for one of ours."""
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (id TEXT PRIMARY KEY, place INTEGER, row TEXT NOT NULL);
CREATE TABLE events (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  event TEXT NOT NULL UNIQUE,
  item TEXT NOT NULL REFERENCES items (id),
  annotator TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('label', 'skip', 'undo')),
  winner TEXT CHECK (winner IN ('first', 'second', 'tie')),
  shown TEXT CHECK (shown IN ('first', 'second')),
  seconds REAL,
  time TEXT NOT NULL,
  undoes INTEGER UNIQUE REFERENCES events (number),
  CHECK ((kind = 'label') = (winner IS NOT NULL)),
  CHECK ((kind = 'undo') = (undoes IS NOT NULL))
);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE TRIGGER events_last BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE VIEW standing AS
  SELECT * FROM events
  WHERE kind != 'undo' AND number NOT IN (SELECT undoes FROM events WHERE undoes IS NOT NULL);
"""


class OutOfDate(LabError):
    """The answer is to something that is no longer so, such as an item that was labelled in another window."""


@dataclass(frozen=True, slots=True)
class Label:
    """One annotator's answer to one item.

    Attributes:
        winner: first, second or tie, in terms of the item, whatever the order in which it was shown.
        shown: the reply that was shown as number 1: first or second.
        seconds: from showing the item to the answer.
        time: of the answer, ISO 8601, UTC.
    """

    item: Item
    annotator: str
    winner: str
    shown: str
    seconds: float
    time: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an annotator is with the items that are drawn."""

    total: int
    labelled: int
    ties: int
    skipped: int
    median_seconds: float | None

    @property
    def left(self) -> int:
        return self.total - self.labelled - self.skipped


class LabelStore:
    """The labels of one source.

    Args:
        path: the SQLite file.
        create: make it where it is not there; else that is a DataError.
    """

    def __init__(self, path: Path, *, create: bool = False):
        if create:
            make_folder(path.parent)
        elif not path.is_file():
            raise DataError(
                f"{path} does not exist: nothing has been labelled yet, or the labels are elsewhere (to=FILE)"
            )
        self.path = path
        try:
            # The server answers in one thread, which under tests is not the one that opens the file.
            self._connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise DataError(f"{path} cannot be used for labels ({error}); name another file with to=FILE") from error

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA foreign_keys=ON")
        with self._writing():
            if self._value("SELECT count(*) FROM sqlite_master") == 0:
                # `executescript` would commit what came before it, and so begin a store that a kill leaves half made.
                for statement in _statements(SCHEMA):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id={APPLICATION}")
                self._connection.execute(f"PRAGMA user_version={VERSION}")
        found = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if found != (APPLICATION, VERSION):
            raise DataError(f"{self.path} is a database, but not of labels; name another file with to=FILE")

    def close(self) -> None:
        self._connection.close()

    # What is asked

    def begin(self, items: Sequence[Item], seed: int) -> None:
        """Set what is to be labelled, in this order. Items of an earlier start keep their labels.

        What the judge says may have changed since then; what was shown may not. Raises ConfigError when the store was
        begun with another seed, or has other texts under the id of an item.
        """
        stored = self.seed()
        if stored not in (None, seed):
            raise ConfigError(
                f"seed={seed}: {self.path} was begun with seed={stored}; write that, or to=ANOTHER.sqlite"
            )
        with self._writing():
            self._require_same_texts(items)
            self._connection.execute("INSERT OR IGNORE INTO settings VALUES ('seed', ?)", (str(seed),))
            self._connection.execute("UPDATE items SET place = NULL")
            self._connection.executemany(
                "INSERT INTO items VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET place = excluded.place, row = excluded.row",
                [(item.id, place, json.dumps(item.to_row(), ensure_ascii=False)) for place, item in enumerate(items)],
            )

    def _require_same_texts(self, items: Sequence[Item]) -> None:
        rows = self._connection.execute("SELECT row FROM items").fetchall()
        known = {item.id: item for item in (Item.from_row(json.loads(row)) for (row,) in rows)}
        for item in items:
            earlier = known.get(item.id, item)
            if (earlier.prompt, earlier.first, earlier.second) != (item.prompt, item.first, item.second):
                raise ConfigError(
                    f"{self.path} has another comparison with the id {item.id!r}: the source has changed since; write "
                    "to=ANOTHER.sqlite to label it as it is now"
                )

    def seed(self) -> int | None:
        """The seed that the store was begun with; None before that."""
        value = self._value("SELECT value FROM settings WHERE name = 'seed'")
        return None if value is None else int(value)

    def next_item(self, annotator: str) -> Item | None:
        """The first drawn item without an answer of this annotator; None when all have one."""
        row = self._value(
            "SELECT row FROM items WHERE place IS NOT NULL "
            "AND id NOT IN (SELECT item FROM standing WHERE annotator = ?) ORDER BY place LIMIT 1",
            annotator,
        )
        return None if row is None else Item.from_row(json.loads(row))

    # What is answered

    def label(
        self, event: str, annotator: str, item_id: str, *, winner: str | None, shown: str, seconds: float
    ) -> None:
        """Append a label, or a skip. The same event once more changes nothing.

        Args:
            event: an id that the page draws for the answer, and sends again with a retry.
            winner: first, second or tie; None is a skip.
        Raises:
            OutOfDate: this annotator has answered the item already, or there is no such item.
        """
        with self._writing():
            if self._has(event):
                return
            if self._value("SELECT 1 FROM items WHERE id = ?", item_id) is None:
                raise OutOfDate("this item is not in the store")
            answered = "SELECT 1 FROM standing WHERE item = ? AND annotator = ?"
            if self._value(answered, item_id, annotator) is not None:
                raise OutOfDate("this item has been answered already, in another window")
            kind = "skip" if winner is None else "label"
            self._append(event, item_id, annotator, kind, winner, shown, seconds, None)

    def undo(self, event: str, annotator: str, undoes: int) -> None:
        """Take back this annotator's last answer, number `undoes`. The same event once more changes nothing.

        Raises OutOfDate when that is not the last one.
        """
        with self._writing():
            if self._has(event):
                return
            if self.last_answer(annotator) != undoes:
                raise OutOfDate("this is not the last answer, which was given in another window")
            item_id = self._value("SELECT item FROM events WHERE number = ?", undoes)
            self._append(event, item_id, annotator, "undo", None, None, None, undoes)

    def last_answer(self, annotator: str) -> int | None:
        """Number of the annotator's last answer to a drawn item; None where there is none."""
        number = self._value(
            "SELECT max(number) FROM standing WHERE annotator = ? "
            "AND item IN (SELECT id FROM items WHERE place IS NOT NULL)",
            annotator,
        )
        return None if number is None else int(number)

    def _has(self, event: str) -> bool:
        return self._value("SELECT 1 FROM events WHERE event = ?", event) is not None

    def _append(self, *values: object) -> None:
        event, item_id, annotator, kind, winner, shown, seconds, undoes = values
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._connection.execute(
            "INSERT INTO events (event, item, annotator, kind, winner, shown, seconds, time, undoes) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (event, item_id, annotator, kind, winner, shown, seconds, time, undoes),
        )

    # What is known

    def labels(self) -> list[Label]:
        """The labels that count, of all annotators, in the order in which they were given."""
        rows = self._connection.execute(
            "SELECT items.row, annotator, winner, shown, seconds, time FROM standing JOIN items ON items.id = item "
            "WHERE kind = 'label' ORDER BY number"
        )
        return [Label(Item.from_row(json.loads(row)), *values) for row, *values in rows]

    def skips(self) -> int:
        """How many items were skipped, of all annotators."""
        return int(self._value("SELECT count(*) FROM standing WHERE kind = 'skip'"))

    def progress(self, annotator: str) -> Progress:
        answers = self._connection.execute(
            "SELECT kind, winner, seconds FROM standing JOIN items ON items.id = item "
            "WHERE annotator = ? AND place IS NOT NULL",
            (annotator,),
        ).fetchall()
        seconds = [seconds for kind, _, seconds in answers if kind == "label"]
        return Progress(
            total=int(self._value("SELECT count(*) FROM items WHERE place IS NOT NULL")),
            labelled=len(seconds),
            ties=sum(winner == "tie" for _, winner, _ in answers),
            skipped=len(answers) - len(seconds),
            median_seconds=median(seconds) if seconds else None,
        )

    def _value(self, query: str, *values: object) -> Any:
        """The first column of the first row; None without one."""
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: on disk in whole when the block ends, absent when it fails."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself rolls back when the disk is full
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _statements(script: str) -> Iterator[str]:
    """Statements of a script; a trigger's body holds semicolons of its own."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
