"""SQLite store of paid completions, of a ledger of attempts, and of batches.

The store commits an attempt with its maximum cost before the request is sent. It commits a completion and its actual
cost in one transaction. A process may therefore be killed at any point: finished answers are stored, and attempts
in flight are known.

    sent ──► answered   the completion is stored and its cost is known
      ├────► failed     the service did no work or never got the request: the attempt costs nothing
      └────► lost       no answer arrived: the attempt may have been charged and counts at its maximum cost

A batch is recorded before it is sent (intent), then gets the service's name (sent), and finishes (done, failed). Its
attempts carry the batch's own name.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from rlhf_lab.core.database import WellFormedConnection, transaction, write_ahead
from rlhf_lab.core.errors import ArtifactError, StorageError
from rlhf_lab.packs.judging.judges.ledger import (
    AlreadyRequested,
    Ledger,
    LedgerAttempt,
    OpenBatch,
    OverBudget,
    PendingRequest,
    is_gone,
    item_name,
    this_process,
)
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Stop, Usage

VERSION = 3
"""Version of the tables. A file of an earlier version is migrated when it is opened."""
APPLICATION = 0x726C6A31
"""SQLite application id that marks a file as a judge store."""
IN_MEMORY = Path(":memory:")
"""SQLite's name for a database without a file: an empty store that lives as long as its process."""
BUSY_S = 60.0
"""Maximum number of seconds that a process waits for another process's transaction."""
LONGEST_ATTEMPT_S = 1200.0
"""Age in seconds after which an attempt of another process counts as abandoned. Used if the opener sets no limit."""
LONGEST_SENDING_S = 3600.0
"""Age in seconds after which a batch that another process is still creating is searched for at the service."""
AT_ONCE = 500
"""Maximum number of values in one SQL statement."""
_pursued: set[tuple[str, int | str]] = set()
"""(file, attempt id or batch name) pairs that a thread of this process is waiting for.

An attempt that is `sent` in the database but missing here was abandoned, for example because a full disk prevented
recording its failure.
"""
TABLES = """
CREATE TABLE store (id TEXT NOT NULL);
CREATE TABLE accounts (account TEXT PRIMARY KEY, counted_usd REAL NOT NULL);
CREATE TABLE replies (
    digest TEXT PRIMARY KEY, text TEXT NOT NULL, stop TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL, model TEXT NOT NULL, identity TEXT NOT NULL, request TEXT NOT NULL, time REAL NOT NULL,
    tool_calls TEXT, latency_s REAL NOT NULL DEFAULT 0, blocks TEXT
);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL, account TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
    model TEXT NOT NULL, bytes INTEGER NOT NULL, reserved_usd REAL NOT NULL, cost_usd REAL NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    price TEXT NOT NULL, batch TEXT, request TEXT, status INTEGER NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '',
    began REAL NOT NULL, ended REAL
);
CREATE INDEX attempts_of_digest ON attempts (digest, state);
CREATE INDEX attempts_of_batch ON attempts (batch) WHERE batch IS NOT NULL;
CREATE INDEX attempts_under_way ON attempts (owner) WHERE state = 'sent';
CREATE TABLE batches (
    name TEXT PRIMARY KEY, account TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL, remote TEXT,
    identity TEXT NOT NULL, items INTEGER NOT NULL, why TEXT NOT NULL DEFAULT '', began REAL NOT NULL, ended REAL
);
"""
MIGRATIONS = {
    1: (
        "ALTER TABLE replies ADD COLUMN tool_calls TEXT",
        "ALTER TABLE replies ADD COLUMN latency_s REAL NOT NULL DEFAULT 0",
    ),
    2: ("ALTER TABLE replies ADD COLUMN blocks TEXT",),
}
"""Version → SQL statements that migrate a file of this version to the next one."""


class Store:
    """Judge store in one SQLite file, shared by the threads of this process and by other processes.

    Opening the file marks attempts of dead processes as lost. Raises ArtifactError for a file that is not a judge
    store or has a newer version, and StorageError if the file cannot be read or written.

    Args:
        durable: True if each completion must be on disk before it is used, so that it survives a power cut. Otherwise
            it survives the death of the process only, and writing is several times as fast.
        max_attempt_s: maximum number of seconds to wait for the answer to a single request.
    """

    def __init__(self, path: Path, *, durable: bool = True, max_attempt_s: float = LONGEST_ATTEMPT_S):
        self.path = path
        self.max_attempt_s = max_attempt_s
        self.owner = this_process()
        self._file = str(path.resolve())
        self._lock = threading.RLock()
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=WellFormedConnection
            )
            self._db.row_factory = sqlite3.Row
            write_ahead(self._db, BUSY_S)
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._prepare()
            self._id = self._db.execute("SELECT id FROM store").fetchone()["id"]
        self.lose_abandoned()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _prepare(self) -> None:
        with self._lock, transaction(self._db):
            db = self._db
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
            # an empty file is a new store; any other file must carry our application id
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO store VALUES (?)", [token_hex(16)])
                db.execute(f"PRAGMA application_id = {APPLICATION}")
            elif application != APPLICATION:
                raise ArtifactError(f"{self.path} is an SQLite file, but no judge store; set judge.store=FILE")
            elif version > VERSION:
                raise ArtifactError(
                    f"{self.path} is a judge store of version {version}, but this rlhf_lab reads up to {VERSION}; "
                    "update rlhf_lab, or set judge.store=FILE to another name"
                )
            if version < VERSION:
                for earlier in range(version or VERSION, VERSION):
                    for statement in MIGRATIONS[earlier]:
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")

    # --- completions

    def completions(self, digests: Iterable[str]) -> dict[str, Completion]:
        """Return the stored completions by digest."""
        expected = list(dict.fromkeys(digests))
        found: dict[str, Completion] = {}
        with self._explained(), self._lock:
            for some in _portions(expected):
                rows = self._db.execute(f"SELECT * FROM replies WHERE digest IN ({_marks(some)})", some)
                found |= {row["digest"]: _completion(row) for row in rows}
        return found

    # --- attempts

    def start(self, question: PendingRequest, account: str, budget_usd: float | None) -> Completion | LedgerAttempt:
        """Return the stored completion, or reserve the maximum cost and return an attempt that may now be sent.

        Raises:
            AlreadyRequested: another process is sending the same request, or a batch contains it; try again later.
            OverBudget: the attempt can cost more than the rest of the budget of `account`.
        """
        # One transaction covers the three checks: otherwise two processes could both send, or both spend the rest.
        with self._writing() as db:
            row = db.execute("SELECT * FROM replies WHERE digest = ?", [question.digest]).fetchone()
            if row is not None:
                return _completion(row)
            if self._is_requested(db, question.digest):
                raise AlreadyRequested
            attempt = self._reserve(db, question, account, budget_usd, batch=None)
            _pursued.add((self._file, attempt.id))
            return attempt

    def is_requested(self, digest: str) -> bool:
        """Return True if an attempt at this request is in flight."""
        with self._explained(), self._lock:
            return self._is_requested(self._db, digest)

    def _is_requested(self, db: sqlite3.Connection, digest: str) -> bool:
        # a batch counts as in flight whether or not its process is alive: the service works on it
        rows = db.execute("SELECT id, owner, batch, began FROM attempts WHERE digest = ? AND state = 'sent'", [digest])
        return any(row["batch"] or self._is_attempted(row) for row in rows)

    def _is_attempted(self, row: sqlite3.Row) -> bool:
        return self._is_pursued(row["id"], row["owner"], row["began"], self.max_attempt_s)

    def _is_pursued(self, what: int | str, owner: str, began: float, max_s: float) -> bool:
        """Return True if the process that started an attempt or batch is still waiting for it.

        The age decides for a process on another host, and for one that gave up but could not record that.
        """
        # for this process the set of pursued attempts is exact, independent of their age
        if owner == self.owner:
            return (self._file, what) in _pursued
        return not is_gone(owner) and time.time() - began <= max_s

    @contextmanager
    def _finish_attempt(self, what: int | str) -> Iterator[sqlite3.Connection]:
        """Open a transaction that records the end of an attempt or batch, then stop pursuing it even on an error."""
        try:
            with self._writing() as db:
                yield db
        finally:
            _pursued.discard((self._file, what))

    def _reserve(
        self,
        db: sqlite3.Connection,
        question: PendingRequest,
        account: str,
        budget_usd: float | None,
        batch: str | None,
    ) -> LedgerAttempt:
        counted = self.counted_usd(account)
        # the counted amount is a sum of many small floats, so it may exceed the budget by rounding errors
        if budget_usd is not None and counted + question.reserve_usd > budget_usd * (1 + 1e-12):
            raise OverBudget(may_pass=self._has_in_flight(db, account))
        # the reservation counts from now on, until the attempt ends
        _count(db, account, question.reserve_usd)
        # A service that supports idempotency keys would repeat its own error 500 forever, so each such error changes
        # the key. After a lost attempt the key stays the same.
        broken = db.execute(
            "SELECT count(*) FROM attempts WHERE digest = ? AND state = 'failed' AND status = 500", [question.digest]
        ).fetchone()[0]
        key = sha256(f"{self._id}/{question.digest}/{broken}".encode()).hexdigest()
        values = {
            "digest": question.digest,
            "account": account,
            "state": "sent",
            "owner": self.owner,
            "model": str(question.identity.get("model", "")),
            "bytes": question.bytes,
            "reserved_usd": question.reserve_usd,
            "price": question.price,
            "batch": batch,
            # another process may read the results of a batch, and then needs the request
            "request": _request_json(question.request) if batch else None,
            "began": time.time(),
        }
        cursor = db.execute(f"INSERT INTO attempts ({', '.join(values)}) VALUES ({_marks(values)})", [*values.values()])
        return LedgerAttempt(cast(int, cursor.lastrowid), question, key)

    def _has_in_flight(self, db: sqlite3.Connection, account: str) -> bool:
        """Return True if a single request of the account is in flight. Batches do not count: they take up to a day."""
        rows = db.execute(
            "SELECT id, owner, began FROM attempts WHERE account = ? AND state = 'sent' AND batch IS NULL", [account]
        )
        return any(self._is_attempted(row) for row in rows)

    def store_completion(
        self, attempt: LedgerAttempt, completion: Completion, model: str, *, repeated: bool = False
    ) -> None:
        """Store a completion and its cost.

        Args:
            repeated: True if the service returned the answer of a lost attempt again. The service charged only once,
                so the lost attempts of this request are released.
        """
        with self._finish_attempt(attempt.id) as db:
            # the service charged the lost attempt, and this answer carries that cost
            if repeated:
                digest = attempt.question.digest
                rows = db.execute("SELECT id FROM attempts WHERE digest = ? AND state = 'lost'", [digest]).fetchall()
                for row in rows:
                    self._release(db, row["id"], "its answer came with a later attempt, which carries the cost")
            self._answer(db, attempt.id, attempt.question, completion, model)

    def _answer(
        self, db: sqlite3.Connection, id: int, question: PendingRequest, completion: Completion, model: str
    ) -> bool:
        row = db.execute("SELECT account, state, reserved_usd FROM attempts WHERE id = ?", [id]).fetchone()
        if row["state"] == "answered":  # results of a batch may be read twice, by two processes
            return False
        # replace the reservation by the actual cost; a failed attempt has released its own already
        reserved = row["reserved_usd"] if row["state"] in ("sent", "lost") else 0.0
        _count(db, row["account"], completion.cost_usd - reserved)
        usage = asdict(completion.usage)
        self._end(db, id, "answered", cost_usd=completion.cost_usd, **usage)
        values = {
            "digest": question.digest,
            "text": completion.text,
            "stop": completion.stop,
            **usage,
            "cost_usd": completion.cost_usd,
            "model": model,
            "identity": json.dumps(dict(question.identity), ensure_ascii=False),
            "request": _request_json(question.request),
            "time": time.time(),
            "tool_calls": _json_or_none(completion.tool_calls),
            "latency_s": completion.latency_s,
            "blocks": _json_or_none(completion.blocks),
        }
        # if two processes sent the request, keep the first answer: results may already depend on it
        db.execute(f"INSERT OR IGNORE INTO replies ({', '.join(values)}) VALUES ({_marks(values)})", [*values.values()])
        return True

    def failed(self, attempt: LedgerAttempt, why: str, status: int = 0) -> None:
        """Record an attempt that cost nothing: it did not reach the service, or the service did no work."""
        with self._finish_attempt(attempt.id) as db:
            row = db.execute("SELECT state FROM attempts WHERE id = ?", [attempt.id]).fetchone()
            if row["state"] == "sent":
                self._release(db, attempt.id, why, status)

    def mark_lost(self, attempt: LedgerAttempt, why: str, status: int = 0) -> None:
        """Record an attempt whose answer never arrived. Its reservation stays counted."""
        with self._finish_attempt(attempt.id) as db:
            self._end(db, attempt.id, "lost", why=why, status=status)

    def lose_abandoned(self) -> int:
        """Mark abandoned attempts as lost, mostly those of dead processes. Return their number."""
        with self._writing() as db:
            rows = db.execute("SELECT id, owner, began FROM attempts WHERE state = 'sent' AND batch IS NULL").fetchall()
            abandoned = [row["id"] for row in rows if not self._is_attempted(row)]
            for id in abandoned:
                self._end(db, id, "lost", why="its process ended, or has been silent for too long")
            return len(abandoned)

    def _release(self, db: sqlite3.Connection, id: int, why: str, status: int = 0) -> None:
        row = db.execute("SELECT account, reserved_usd FROM attempts WHERE id = ?", [id]).fetchone()
        _count(db, row["account"], -row["reserved_usd"])
        self._end(db, id, "failed", why=why, status=status)

    def _end(self, db: sqlite3.Connection, id: int, state: str, **values: Any) -> None:
        values |= {"state": state, "ended": time.time()}
        assignments = ", ".join(f"{name} = ?" for name in values)
        db.execute(f"UPDATE attempts SET {assignments} WHERE id = ?", [*values.values(), id])

    # --- batches

    def start_batch(
        self, questions: Sequence[PendingRequest], account: str, budget_usd: float | None
    ) -> tuple[str, list[LedgerAttempt]]:
        """Record a batch and return (its name, its attempts).

        Questions that are stored or in flight are left out. From the first question that the budget does not cover, the
        rest is left out too. Raises OverBudget if the budget covers none.
        """
        # random, so that the name is unique in the service's account
        name = f"b{token_hex(8)}"
        attempts: list[LedgerAttempt] = []
        with self._writing() as db:
            for question in questions:
                is_stored = db.execute("SELECT 1 FROM replies WHERE digest = ?", [question.digest]).fetchone()
                if is_stored or self._is_requested(db, question.digest):
                    continue
                try:
                    attempts.append(self._reserve(db, question, account, budget_usd, batch=name))
                except OverBudget:
                    # a batch may be smaller than requested, but not empty
                    if not attempts:
                        raise
                    break
            if attempts:
                identity = json.dumps(dict(attempts[0].question.identity), ensure_ascii=False)
                values = [name, account, self.owner, "intent", None, identity, len(attempts), "", time.time(), None]
                db.execute(f"INSERT INTO batches VALUES ({_marks(values)})", values)
                _pursued.add((self._file, name))
        return name, attempts

    def batch_sent(self, name: str, remote: str) -> None:
        with self._finish_attempt(name) as db:
            db.execute("UPDATE batches SET state = 'sent', remote = ? WHERE name = ?", [remote, name])

    def open_batches(self, digests: Iterable[str]) -> list[OpenBatch]:
        """Return the unfinished batches, of any process, that contain one of these requests; oldest first."""
        found: dict[str, OpenBatch] = {}
        with self._explained(), self._lock:
            for some in _portions(list(digests)):
                rows = self._db.execute(
                    "SELECT DISTINCT batches.* FROM batches JOIN attempts ON attempts.batch = batches.name WHERE "
                    f"digest IN ({_marks(some)}) AND attempts.state = 'sent' AND batches.state IN ('intent', 'sent')",
                    some,
                ).fetchall()
                for row in rows:
                    name = row["name"]
                    items = self._db.execute("SELECT id, digest FROM attempts WHERE batch = ?", [name])
                    of_batch = {item_name(name, item["id"]): item["digest"] for item in items}
                    found[name] = OpenBatch(name, row["owner"], row["remote"] or "", row["began"], of_batch)
        return sorted(found.values(), key=lambda batch: batch.began)

    def question(self, item: str) -> PendingRequest:
        """Return the request of a batch item."""
        with self._explained(), self._lock:
            row = self._db.execute(
                "SELECT attempts.*, batches.identity FROM attempts JOIN batches ON batches.name = attempts.batch "
                "WHERE attempts.id = ?",
                [_attempt_id(item)],
            ).fetchone()
        values = json.loads(row["request"])
        # JSON has lists; requests compare and hash tuples
        lists = {name: tuple(values.get(name, ())) for name in ("messages", "tools", "stop")}
        request = CompletionRequest(**values | lists)
        identity = json.loads(row["identity"])
        return PendingRequest(row["digest"], request, identity, row["bytes"], row["reserved_usd"], row["price"])

    def is_being_sent(self, batch: OpenBatch) -> bool:
        """Return True if a process is creating this batch at the service now."""
        return not batch.remote and self._is_pursued(batch.name, batch.owner, batch.began, LONGEST_SENDING_S)

    def give_up_sending(self, name: str) -> None:
        """Stop pursuing a batch that may or may not exist. The next process that needs it searches for it."""
        _pursued.discard((self._file, name))

    def known_batches(self) -> set[str]:
        """Return the service's names of all batches that were sent from this store."""
        with self._explained(), self._lock:
            rows = self._db.execute("SELECT remote FROM batches WHERE remote IS NOT NULL")
            return {row["remote"] for row in rows}

    def item_answered(self, item: str, question: PendingRequest, completion: Completion, model: str) -> bool:
        """Store the completion of a batch item. Return False if it was stored already."""
        with self._writing() as db:
            return self._answer(db, _attempt_id(item), question, completion, model)

    def item_failed(self, item: str, why: str, status: int = 0) -> None:
        """Record a batch item that the service did not process. It may be requested again."""
        with self._writing() as db:
            row = db.execute("SELECT state FROM attempts WHERE id = ?", [_attempt_id(item)]).fetchone()
            if row is not None and row["state"] == "sent":
                self._release(db, _attempt_id(item), why, status)

    def end_batch(self, name: str, state: str, why: str = "") -> None:
        """Finish a batch as `done`, or as `failed` at no cost. Items without a result may be requested again."""
        with self._finish_attempt(name) as db:
            for row in db.execute("SELECT id FROM attempts WHERE batch = ? AND state = 'sent'", [name]).fetchall():
                if state == "failed":
                    self._release(db, row["id"], why)
                else:
                    self._end(db, row["id"], "lost", why="its batch has no result of it")
            db.execute(
                "UPDATE batches SET state = ?, why = ?, ended = ? WHERE name = ?", [state, why, time.time(), name]
            )

    # --- accounts

    def ledger(self, account: str) -> Ledger:
        """Return the spending of an account."""
        with self._explained(), self._lock:
            rows = self._db.execute(
                "SELECT state, count(*) AS count, sum(cost_usd) AS cost, sum(reserved_usd) AS reserved, "
                "sum(input_tokens) AS input, sum(cache_write_tokens) AS cache_write, "
                "sum(cache_read_tokens) AS cache_read, sum(output_tokens) AS output FROM attempts WHERE account = ? "
                "GROUP BY state",
                [account],
            ).fetchall()
        none = dict.fromkeys(("count", "cost", "reserved", "input", "cache_write", "cache_read", "output"), 0)
        of = {row["state"]: dict(row) for row in rows}
        answered, lost, sent = (of.get(state, none) for state in ("answered", "lost", "sent"))
        return Ledger(
            requests=answered["count"],
            spent_usd=answered["cost"],
            open_usd=sent["reserved"],
            lost=lost["count"],
            lost_usd=lost["reserved"],
            usage=Usage(answered["input"], answered["cache_write"], answered["cache_read"], answered["output"]),
        )

    def counted_usd(self, account: str) -> float:
        """Return the amount in USD that counts against an account's budget."""
        with self._explained(), self._lock:
            row = self._db.execute("SELECT counted_usd FROM accounts WHERE account = ?", [account]).fetchone()
        return row["counted_usd"] if row else 0.0

    def token_rates(self, model: str) -> tuple[float, float] | None:
        """Return (input tokens per byte sent, output tokens per answer) of a model; None before its first answer."""
        with self._explained(), self._lock:
            row = self._db.execute(
                "SELECT count(*) AS count, sum(bytes) AS bytes, sum(output_tokens) AS output, "
                "sum(input_tokens + cache_write_tokens + cache_read_tokens) AS input "
                "FROM attempts WHERE model = ? AND state = 'answered' AND output_tokens > 0",
                [model],
            ).fetchone()
        if not row["count"] or not row["bytes"]:
            return None
        return row["input"] / row["bytes"], row["output"] / row["count"]

    # --- SQLite

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._explained(), self._lock, transaction(self._db):
            yield self._db

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            hint = "make it writable, or write judge.store=FILE"
            # SQLite's full text: "database or disk is full". The word "full" alone may be part of the path.
            if "disk is full" in str(error):
                hint = "free disk space there"
            elif "locked" in str(error):
                hint = f"another process has locked it for {BUSY_S:.0f} s"
            raise StorageError(f"{self.path} cannot be written or read: {error}; {hint}") from error
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"{self.path} is damaged or no judge store: {error}; restore it from a copy, or move it away and pay "
                "for its completions again"
            ) from error


def _attempt_id(item: str) -> int:
    return int(item.rpartition("-")[2])


def _count(db: sqlite3.Connection, account: str, usd: float) -> None:
    db.execute(
        "INSERT INTO accounts VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET counted_usd = counted_usd + ?",
        [account, usd, usd],
    )


def _completion(row: sqlite3.Row) -> Completion:
    usage = Usage(row["input_tokens"], row["cache_write_tokens"], row["cache_read_tokens"], row["output_tokens"])
    return Completion(
        text=row["text"],
        stop=cast(Stop, row["stop"]),
        usage=usage,
        stored=True,
        tool_calls=tuple(json.loads(row["tool_calls"] or "[]")),
        blocks=tuple(json.loads(row["blocks"] or "[]")),
        latency_s=row["latency_s"],
        stored_cost_usd=row["cost_usd"],
    )


def _json_or_none(values: Sequence[Mapping[str, Any]]) -> str | None:
    return json.dumps(list(values), ensure_ascii=False) if values else None


def _request_json(request: CompletionRequest) -> str:
    """Return the request as JSON, stored with its completion so that it can be read without this code."""
    values: dict[str, Any] = {
        "system": request.system,
        "messages": list(request.messages),
        "max_tokens": request.max_tokens,
        "schema": request.schema,
        "draw": request.draw,
    }
    if request.tools:
        values["tools"] = list(request.tools)
    if request.stop:
        values["stop"] = list(request.stop)
    return json.dumps(values, ensure_ascii=False)


def _portions(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), AT_ONCE):
        yield values[start : start + AT_ONCE]


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)
