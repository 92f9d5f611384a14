"""Append-only SQLite store of labels: every answer is an event that never changes.

    items     the shown comparisons as JSON; `place` is the position in the order of the last session, null if the item
              was not selected
    events    label, skip or undo; an undo names the event that it revokes, and nothing is deleted
    standing  view of the labels and skips that no undo revokes

An event is on disk when `label` or `undo` returns: the write-ahead log is flushed at every commit (synchronous=FULL).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rlhf_lab.core.database import WellFormedConnection, transaction, write_ahead
from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.files import make_dir
from rlhf_lab.packs.judging.labels.items import LabelItem

APPLICATION, VERSION = 0x524C4142, 1
"""SQLite application id ("RLAB") and version, so that another program's database is not mistaken for a label store."""
BUSY_S = 10.0
"""Maximum number of seconds to wait for another process that writes to the file."""
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
    """Raised if an answer does not match the state of the store, e.g. if the item was labelled in another window."""


@dataclass(frozen=True, slots=True)
class StoredLabel:
    """One annotator's answer to one item.

    Attributes:
        winner: first, second or tie, in terms of the item, independent of the order on the page.
        shown: the response that was shown as number 1: first or second.
        seconds: seconds from showing the item to the answer.
        time: time of the answer, ISO 8601, UTC.
    """

    item: LabelItem
    annotator: str
    winner: str
    shown: str
    seconds: float
    time: str


@dataclass(frozen=True, slots=True)
class LabellingProgress:
    """Counts of an annotator's answers to the selected items."""

    total: int
    labelled: int
    ties: int
    skipped: int
    median_seconds: float | None

    @property
    def left(self) -> int:
        return self.total - self.labelled - self.skipped


class LabelStore:
    """Labels of one source.

    Args:
        path: the SQLite file.
        create: True to create a missing file; otherwise it raises DataError.
    """

    def __init__(self, path: Path, *, create: bool = False):
        if create:
            make_dir(path.parent)
        elif not path.is_file():
            raise DataError(
                f"{path} does not exist: nothing has been labelled yet, or the labels are in another file (to=FILE)"
            )
        self.path = path
        try:
            # the server answers in one thread; in tests it is not the thread that opens the file
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=WellFormedConnection
            )
            self._prepare()
        except sqlite3.Error as error:
            raise DataError(f"{path} cannot be used for labels ({error}); name another file with to=FILE") from error

    def _prepare(self) -> None:
        write_ahead(self._connection, BUSY_S)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA foreign_keys=ON")
        with transaction(self._connection):
            if self._value("SELECT count(*) FROM sqlite_master") == 0:
                # `executescript` commits first, so a killed process could leave an incomplete store
                for statement in _statements(SCHEMA):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id={APPLICATION}")
                self._connection.execute(f"PRAGMA user_version={VERSION}")
        found = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if found != (APPLICATION, VERSION):
            raise DataError(f"{self.path} is a database, but not a label store; name another file with to=FILE")

    def close(self) -> None:
        self._connection.close()

    def start(self, items: Sequence[LabelItem], seed: int) -> None:
        """Start a labelling session with these items, in this order. Items of earlier sessions keep their labels.

        The judge's verdicts of these items may have changed since then, but the texts must be the same. Raises
        ConfigError if the store was started with another seed, or has other texts under the id of an item.
        """
        stored = self.seed()
        if stored not in (None, seed):
            raise ConfigError(
                f"seed={seed}: {self.path} was started with seed={stored}; use that seed, or to=ANOTHER.sqlite"
            )
        with transaction(self._connection):
            self._require_same_texts(items)
            self._connection.execute("INSERT OR IGNORE INTO settings VALUES ('seed', ?)", (str(seed),))
            # items of an earlier start leave the selection, but their labels stay
            self._connection.execute("UPDATE items SET place = NULL")
            self._connection.executemany(
                "INSERT INTO items VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET place = excluded.place, row = excluded.row",
                [(item.id, position, item.to_json()) for position, item in enumerate(items)],
            )

    def add(self, items: Sequence[LabelItem]) -> int:
        """Add items to label after those that the store has. Items that it has already keep their place and labels.

        Returns the number of these items that nobody has answered or skipped. Raises ConfigError as `start` does.
        """
        with transaction(self._connection):
            self._require_same_texts(items)
            self._connection.execute("INSERT OR IGNORE INTO settings VALUES ('seed', '0')")
            self._connection.executemany(
                "INSERT OR IGNORE INTO items VALUES (?, (SELECT coalesce(max(place), -1) + 1 FROM items), ?)",
                [(item.id, item.to_json()) for item in items],
            )
        answered = self.first_answers()
        return sum(item.id not in answered for item in items)

    def _require_same_texts(self, items: Sequence[LabelItem]) -> None:
        rows = self._connection.execute("SELECT row FROM items").fetchall()
        by_id = {item.id: item for item in (LabelItem.from_json(row) for (row,) in rows)}
        for item in items:
            earlier = by_id.get(item.id, item)
            if (earlier.prompt, earlier.first, earlier.second) != (item.prompt, item.first, item.second):
                raise ConfigError(
                    f"{self.path} has another comparison with the id {item.id!r}: the source has changed since; set "
                    "to=ANOTHER.sqlite to label the new version"
                )

    def seed(self) -> int | None:
        """Return the seed that the store was started with; None before the first start."""
        value = self._value("SELECT value FROM settings WHERE name = 'seed'")
        return None if value is None else int(value)

    def next_item(self, annotator: str) -> LabelItem | None:
        """Return the first selected item without an answer of this annotator; None if all have one."""
        row = self._value(
            "SELECT row FROM items WHERE place IS NOT NULL "
            "AND id NOT IN (SELECT item FROM standing WHERE annotator = ?) ORDER BY place LIMIT 1",
            annotator,
        )
        return None if row is None else LabelItem.from_json(row)

    def label(
        self, event: str, annotator: str, item_id: str, *, winner: str | None, shown: str, seconds: float
    ) -> None:
        """Append a label or a skip. Repeating an event changes nothing.

        Args:
            event: id that the page creates for the answer and repeats with a retry.
            winner: first, second or tie; None is a skip.

        Raises OutOfDate if this annotator has answered the item already, or there is no such item.
        """
        with transaction(self._connection):
            if self._has(event):
                return
            if self._value("SELECT 1 FROM items WHERE id = ?", item_id) is None:
                raise OutOfDate("this item is not in the store")
            # one answer per item and annotator; an undo must come first
            answered = "SELECT 1 FROM standing WHERE item = ? AND annotator = ?"
            if self._value(answered, item_id, annotator) is not None:
                raise OutOfDate("this item has been answered already, in another window")
            kind = "skip" if winner is None else "label"
            self._append(event, item_id, annotator, kind, winner, shown, seconds, None)

    def undo(self, event: str, annotator: str, undoes: int) -> None:
        """Revoke this annotator's last answer, whose number is `undoes`. Repeating an event changes nothing.

        Raises OutOfDate if it is not the last answer.
        """
        with transaction(self._connection):
            if self._has(event):
                return
            if self.last_answer(annotator) != undoes:
                raise OutOfDate("a later answer was given in another window, so this one is not the last")
            item_id = self._value("SELECT item FROM events WHERE number = ?", undoes)
            self._append(event, item_id, annotator, "undo", None, None, None, undoes)

    def last_answer(self, annotator: str) -> int | None:
        """Return the number of the annotator's last answer to a selected item; None if there is none."""
        number = self._value(
            "SELECT max(number) FROM standing WHERE annotator = ? "
            "AND item IN (SELECT id FROM items WHERE place IS NOT NULL)",
            annotator,
        )
        return None if number is None else int(number)

    def _has(self, event: str) -> bool:
        return self._value("SELECT 1 FROM events WHERE event = ?", event) is not None

    def _append(self, *values: object) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._connection.execute(
            "INSERT INTO events (event, item, annotator, kind, winner, shown, seconds, undoes, time) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, time),
        )

    def labels(self) -> list[StoredLabel]:
        """Return the valid labels of all annotators, in chronological order."""
        rows = self._connection.execute(
            "SELECT items.row, annotator, winner, shown, seconds, time FROM standing JOIN items ON items.id = item "
            "WHERE kind = 'label' ORDER BY number"
        )
        return [StoredLabel(LabelItem.from_json(row), *values) for row, *values in rows]

    def first_answers(self) -> dict[str, str | None]:
        """Return id of an item → the first label that it was given; None if everyone who saw it skipped it."""
        answers: dict[str, str | None] = {}
        for item, winner in self._connection.execute("SELECT item, winner FROM standing ORDER BY number"):
            answers[item] = answers.get(item) or winner
        return answers

    def skips(self) -> int:
        """Return the number of skipped items, over all annotators."""
        return int(self._value("SELECT count(*) FROM standing WHERE kind = 'skip'"))

    def progress(self, annotator: str) -> LabellingProgress:
        answers = self._connection.execute(
            "SELECT kind, winner, seconds FROM standing JOIN items ON items.id = item "
            "WHERE annotator = ? AND place IS NOT NULL",
            (annotator,),
        ).fetchall()
        # skips have a time too, but the median is of labels
        seconds = [seconds for kind, _, seconds in answers if kind == "label"]
        return LabellingProgress(
            total=int(self._value("SELECT count(*) FROM items WHERE place IS NOT NULL")),
            labelled=len(seconds),
            ties=sum(winner == "tie" for _, winner, _ in answers),
            skipped=len(answers) - len(seconds),
            median_seconds=median(seconds) if seconds else None,
        )

    def _value(self, query: str, *values: object) -> Any:
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script. A trigger contains semicolons, so splitting at them would not work."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
