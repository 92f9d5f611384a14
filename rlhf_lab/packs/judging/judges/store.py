"""Replies that were paid for, the ledger of every attempt at one, and batches: one SQLite file.

An attempt is written down, with the most that it can cost, before it is sent; its reply and what it did cost are one
transaction. So a process may be killed at any point: what was answered is there, what was under way is known.

    sent ──► answered   the reply is stored, the cost known
      ├────► failed     the service took no work on, or never got it: costs nothing
      └────► lost       the answer never came: it may have been charged, and counts as the most that it can cost

A batch is written down before it is sent (intent), gets the service's name for it (sent), and ends (done, failed). Its
attempts carry its name.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from rlhf_lab.core.errors import ArtifactError, StorageError
from rlhf_lab.packs.judging.judges.owners import is_gone, this_process
from rlhf_lab.packs.judging.judges.requests import Reply, Request, Stop, Usage

VERSION = 3
"""Of the tables. A file of an earlier version is brought to this one when it is opened."""
APPLICATION = 0x726C6A31
"""Marks the file as a store of judges, in SQLite's own header."""
IN_MEMORY = Path(":memory:")
"""SQLite's name for no file: an empty store that ends with its process."""
BUSY_S = 60.0
"""How long one process waits for another's transaction."""
LONGEST_ATTEMPT_S = 1200.0
"""Of an older attempt of another process nobody waits for the answer, where the store is opened with no other limit."""
LONGEST_SENDING_S = 3600.0
"""A batch that another process has been creating for longer is looked for at the service."""
AT_ONCE = 500
"""Values of one SQL statement."""
_pursued: set[tuple[str, int | str]] = set()
"""(file, attempt or batch) that a thread of this process is at. Others of this process have been given up: what stopped
them, such as a full disk, kept that from being written."""
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
"""Version → the statements that make the next one of it."""


@dataclass(frozen=True)
class Question:
    """A request that may have to be sent, and what sending it takes.

    Attributes:
        digest: of the request and who answers it.
        identity: who answers it.
        bytes: of what is sent.
        reserve_usd: the most that an attempt can cost.
        price: source of the price.
    """

    digest: str
    request: Request
    identity: Mapping[str, Any]
    bytes: int = 0
    reserve_usd: float = 0.0
    price: str = ""


@dataclass(frozen=True)
class Attempt:
    """A row of the ledger that is under way.

    Attributes:
        idempotency_key: the same when an attempt whose answer was lost is repeated, so that a service that keeps such
            keys answers twice and charges once.
        batch: name of its batch; "" for one by itself.
    """

    id: int
    question: Question
    idempotency_key: str
    batch: str = ""


@dataclass(frozen=True)
class Batch:
    """A batch that has not ended.

    Attributes:
        remote: the service's name of it; "" where its creation was interrupted.
        digests: of its requests, by the names of its items.
    """

    name: str
    account: str
    owner: str
    remote: str
    began: float
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Ledger:
    """What an account has spent.

    Attributes:
        requests: answered.
        spent_usd: by these.
        open_usd: reserved for attempts under way.
        lost: attempts whose answer never came.
        lost_usd: the most that these can have cost.
        usage: tokens of what was answered.
    """

    requests: int
    spent_usd: float
    open_usd: float
    lost: int
    lost_usd: float
    usage: Usage

    @property
    def counted_usd(self) -> float:
        """What counts against the budget."""
        return self.spent_usd + self.open_usd + self.lost_usd


class OverBudget(Exception):
    """The next attempt could cost more than what is left.

    Attributes:
        may_pass: whether attempts of the account are under way, which may cost less than is reserved for them.
    """

    def __init__(self, may_pass: bool = False):
        super().__init__()
        self.may_pass = may_pass


class Asked(Exception):
    """Another process is asking the same at this moment, or a batch has it."""


class Store:
    """The file, for the threads of this process; other processes may use it at the same time.

    Opening it declares attempts lost whose process has ended. Raises ArtifactError for a file that is no store or of a
    newer version, StorageError when the disk refuses.

    Args:
        durable: every reply is on the disk before it is used, and survives a power cut. Else it survives the end of its
            process, however it ends, and is written several times as fast.
        longest_attempt_s: how long anyone waits for the answer to a single request.
    """

    def __init__(self, path: Path, *, durable: bool = True, longest_attempt_s: float = LONGEST_ATTEMPT_S):
        self.path, self.longest_attempt_s = path, longest_attempt_s
        self.owner = this_process()
        self._file = str(path.resolve())
        self._lock = threading.RLock()
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            self._write_ahead()
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._prepare()
            self._id = self._db.execute("SELECT id FROM store").fetchone()["id"]
        self.lose_abandoned()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _write_ahead(self) -> None:
        """Readers go on while one writes. Where two processes create the file at once, SQLite makes neither wait."""
        end = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _prepare(self) -> None:
        """Create the tables of a new file, add what an older one lacks, refuse one that is not ours to write."""
        with self._transaction() as db:
            application = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
            is_empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_empty:
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO store VALUES (?)", [token_hex(16)])
                db.execute(f"PRAGMA application_id = {APPLICATION}")
                db.execute(f"PRAGMA user_version = {VERSION}")
            elif application != APPLICATION:
                raise ArtifactError(f"{self.path} is an SQLite file, but no store of judges; write judge.store=FILE")
            elif version > VERSION:
                raise ArtifactError(
                    f"{self.path} is a store of version {version}, and this is a lab that knows {VERSION}; update the "
                    "lab, or write judge.store=FILE with another name"
                )
            elif version < VERSION:
                for earlier in range(version, VERSION):
                    for statement in MIGRATIONS[earlier]:
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")

    # --- replies

    def replies(self, digests: Iterable[str]) -> dict[str, Reply]:
        """Stored replies, by digest."""
        wanted = list(dict.fromkeys(digests))
        found: dict[str, Reply] = {}
        with self._explained(), self._lock:
            for some in _portions(wanted):
                rows = self._db.execute(f"SELECT * FROM replies WHERE digest IN ({_marks(some)})", some)
                found |= {row["digest"]: _reply(row) for row in rows}
        return found

    # --- attempts

    def begin(self, question: Question, account: str, budget_usd: float | None) -> Reply | Attempt:
        """The stored reply, or an attempt that is written down and reserved and may now be sent.

        Raises:
            Asked: another process or a batch is at it; ask again in a while.
            OverBudget: `account` has less left of its budget than the attempt can cost.
        """
        with self._writing() as db:
            row = db.execute("SELECT * FROM replies WHERE digest = ?", [question.digest]).fetchone()
            if row is not None:
                return _reply(row)
            if self._is_asked(db, question.digest):
                raise Asked
            attempt = self._reserve(db, question, account, budget_usd, batch=None)
            _pursued.add((self._file, attempt.id))
            return attempt

    def is_asked(self, digest: str) -> bool:
        """Whether an attempt at this request is under way."""
        with self._explained(), self._lock:
            return self._is_asked(self._db, digest)

    def _is_asked(self, db: sqlite3.Connection, digest: str) -> bool:
        rows = db.execute("SELECT id, owner, batch, began FROM attempts WHERE digest = ? AND state = 'sent'", [digest])
        return any(row["batch"] or self._is_attempted(row) for row in rows)

    def _is_attempted(self, row: sqlite3.Row) -> bool:
        """Whether somebody is waiting for the answer to a single request."""
        return self._is_pursued(row["id"], row["owner"], row["began"], self.longest_attempt_s)

    def _is_pursued(self, what: int | str, owner: str, began: float, longest_s: float) -> bool:
        """Whether the process that began an attempt or a batch is still at it.

        Of another host, or of a process that gave it up and could not write that down, only its age tells.
        """
        if owner == self.owner:
            return (self._file, what) in _pursued
        return not is_gone(owner) and time.time() - began <= longest_s

    @contextmanager
    def _ending(self, what: int | str) -> Iterator[sqlite3.Connection]:
        """A transaction that writes down the end of what a thread was at, which it is no more, written or not."""
        try:
            with self._writing() as db:
                yield db
        finally:
            _pursued.discard((self._file, what))

    def _reserve(
        self, db: sqlite3.Connection, question: Question, account: str, budget_usd: float | None, batch: str | None
    ) -> Attempt:
        row = db.execute("SELECT counted_usd FROM accounts WHERE account = ?", [account]).fetchone()
        counted = row["counted_usd"] if row else 0.0
        # the sums of many small numbers may differ from the budget by what doubles round off
        if budget_usd is not None and counted + question.reserve_usd > budget_usd * (1 + 1e-12):
            raise OverBudget(may_pass=self._has_under_way(db, account))
        _count(db, account, question.reserve_usd)
        broken = db.execute(
            "SELECT count(*) FROM attempts WHERE digest = ? AND state = 'failed' AND status = 500", [question.digest]
        ).fetchone()[0]
        # after an error of its own a service that keeps keys would give the same error for ever
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
            "request": _request_json(question.request) if batch else None,  # whoever reads the results has to know it
            "began": time.time(),
        }
        cursor = db.execute(f"INSERT INTO attempts ({', '.join(values)}) VALUES ({_marks(values)})", [*values.values()])
        return Attempt(cast(int, cursor.lastrowid), question, key, batch or "")

    def _has_under_way(self, db: sqlite3.Connection, account: str) -> bool:
        """Whether somebody is waiting for an answer that the account pays. Batches are left out: they take a day."""
        rows = db.execute(
            "SELECT id, owner, began FROM attempts WHERE account = ? AND state = 'sent' AND batch IS NULL", [account]
        )
        return any(self._is_attempted(row) for row in rows)

    def answered(self, attempt: Attempt, reply: Reply, model: str, *, repeated: bool = False) -> None:
        """Store a reply and what it cost.

        Args:
            repeated: the service gave the answer of a lost attempt once more: that one was charged for it, and both
                together cost what one does.
        """
        with self._ending(attempt.id) as db:
            if repeated:
                rows = db.execute(
                    "SELECT id, account, reserved_usd FROM attempts WHERE digest = ? AND state = 'lost'",
                    [attempt.question.digest],
                ).fetchall()
                for row in rows:
                    _count(db, row["account"], -row["reserved_usd"])
                    why = "its answer came with a later attempt, which carries the cost"
                    self._end(db, row["id"], "failed", why=why)
            self._answer(db, attempt.id, attempt.question, reply, model)

    def _answer(self, db: sqlite3.Connection, id: int, question: Question, reply: Reply, model: str) -> bool:
        row = db.execute("SELECT account, state, reserved_usd FROM attempts WHERE id = ?", [id]).fetchone()
        if row["state"] == "answered":
            return False
        held = row["reserved_usd"] if row["state"] in ("sent", "lost") else 0.0
        _count(db, row["account"], reply.cost_usd - held)
        usage = asdict(reply.usage)
        self._end(db, id, "answered", cost_usd=reply.cost_usd, **usage)
        values = {
            "digest": question.digest,
            "text": reply.text,
            "stop": reply.stop,
            **usage,
            "cost_usd": reply.cost_usd,
            "model": model,
            "identity": json.dumps(dict(question.identity), ensure_ascii=False),
            "request": _request_json(question.request),
            "time": time.time(),
            "tool_calls": _json_or_none(reply.tool_calls),
            "latency_s": reply.latency_s,
            "blocks": _json_or_none(reply.blocks),
        }
        # where two processes asked, the first answer stays: results may have been made of it already
        db.execute(f"INSERT OR IGNORE INTO replies ({', '.join(values)}) VALUES ({_marks(values)})", [*values.values()])
        return True

    def failed(self, attempt: Attempt, why: str, status: int = 0) -> None:
        """An attempt that cost nothing: it never reached the service, or the service took no work on."""
        with self._ending(attempt.id) as db:
            row = db.execute("SELECT state FROM attempts WHERE id = ?", [attempt.id]).fetchone()
            if row["state"] == "sent":
                self._release(db, attempt.id, why, status)

    def lost(self, attempt: Attempt, why: str, status: int = 0) -> None:
        """An attempt whose answer never came; its reservation stays."""
        with self._ending(attempt.id) as db:
            self._end(db, attempt.id, "lost", why=why, status=status)

    def lose_abandoned(self) -> int:
        """Attempts that nobody is at any more, mostly as their process has ended, become lost; returns how many."""
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

    def begin_batch(
        self, questions: Sequence[Question], account: str, budget_usd: float | None
    ) -> tuple[str, list[Attempt]]:
        """Write a batch down: (its name, its attempts). Questions that are answered or asked already are left out, and
        those from the first one on that the budget does not cover.

        Raises OverBudget where it covers none.
        """
        name = f"b{token_hex(8)}"
        attempts: list[Attempt] = []
        with self._writing() as db:
            for question in questions:
                if db.execute("SELECT 1 FROM replies WHERE digest = ?", [question.digest]).fetchone():
                    continue
                if self._is_asked(db, question.digest):
                    continue
                try:
                    attempts.append(self._reserve(db, question, account, budget_usd, batch=name))
                except OverBudget:
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
        with self._ending(name) as db:
            db.execute("UPDATE batches SET state = 'sent', remote = ? WHERE name = ?", [remote, name])

    def open_batches(self, digests: Iterable[str]) -> list[Batch]:
        """Batches that have not ended and hold one of these requests, oldest first; of whichever process."""
        names: dict[str, None] = {}
        with self._explained(), self._lock:
            for some in _portions(list(digests)):
                rows = self._db.execute(
                    f"SELECT DISTINCT batch FROM attempts WHERE digest IN ({_marks(some)}) AND state = 'sent' "
                    "AND batch IS NOT NULL",
                    some,
                )
                names |= {row["batch"]: None for row in rows}
            batches = [self._batch(name) for name in names]
        return sorted((batch for batch in batches if batch is not None), key=lambda batch: batch.began)

    def _batch(self, name: str) -> Batch | None:
        row = self._db.execute(
            "SELECT * FROM batches WHERE name = ? AND state IN ('intent', 'sent')", [name]
        ).fetchone()
        if row is None:
            return None
        items = self._db.execute("SELECT id, digest FROM attempts WHERE batch = ?", [name])
        digests = {item_name(name, item["id"]): item["digest"] for item in items}
        return Batch(name, row["account"], row["owner"], row["remote"] or "", row["began"], digests)

    def question(self, item: str) -> Question:
        """What an item of a batch asks."""
        with self._explained(), self._lock:
            row = self._db.execute(
                "SELECT attempts.*, batches.identity FROM attempts JOIN batches ON batches.name = attempts.batch "
                "WHERE attempts.id = ?",
                [_attempt_id(item)],
            ).fetchone()
        values = json.loads(row["request"])
        lists = {name: tuple(values.get(name, ())) for name in ("messages", "tools", "stop")}
        request = Request(**values | lists)
        identity = json.loads(row["identity"])
        return Question(row["digest"], request, identity, row["bytes"], row["reserved_usd"], row["price"])

    def is_being_sent(self, batch: Batch) -> bool:
        """Whether somebody is creating a batch at the service at this moment."""
        return not batch.remote and self._is_pursued(batch.name, batch.owner, batch.began, LONGEST_SENDING_S)

    def give_up_sending(self, name: str) -> None:
        """A batch may or may not have been created; whoever needs it next looks for it."""
        _pursued.discard((self._file, name))

    def known_batches(self) -> set[str]:
        """The service's names of all batches that were sent from here."""
        with self._explained(), self._lock:
            rows = self._db.execute("SELECT remote FROM batches WHERE remote IS NOT NULL")
            return {row["remote"] for row in rows}

    def item_answered(self, item: str, question: Question, reply: Reply, model: str) -> bool:
        """As `answered`, for one item of a batch; False where it was stored already."""
        with self._writing() as db:
            return self._answer(db, _attempt_id(item), question, reply, model)

    def item_failed(self, item: str, why: str, status: int = 0) -> None:
        """An item that the service did not work on; it may be asked again."""
        with self._writing() as db:
            row = db.execute("SELECT state FROM attempts WHERE id = ?", [_attempt_id(item)]).fetchone()
            if row is not None and row["state"] == "sent":
                self._release(db, _attempt_id(item), why, status)

    def end_batch(self, name: str, state: str, why: str = "") -> None:
        """A batch is `done`, or `failed` as a whole, and cost nothing. Items without a result may be asked again."""
        with self._ending(name) as db:
            for row in db.execute("SELECT id FROM attempts WHERE batch = ? AND state = 'sent'", [name]).fetchall():
                if state == "failed":
                    self._release(db, row["id"], why)
                else:
                    self._end(db, row["id"], "lost", why="its batch has no result of it")
            db.execute(
                "UPDATE batches SET state = ?, why = ?, ended = ? WHERE name = ?", [state, why, time.time(), name]
            )

    # --- accounts

    def ledger(self, account: str | None = None) -> Ledger:
        """What an account has spent; None is all of them."""
        where, values = ("", []) if account is None else ("WHERE account = ?", [account])
        with self._explained(), self._lock:
            rows = self._db.execute(
                "SELECT state, count(*) AS count, sum(cost_usd) AS cost, sum(reserved_usd) AS reserved, "
                "sum(input_tokens) AS input, sum(cache_write_tokens) AS cache_write, "
                f"sum(cache_read_tokens) AS cache_read, sum(output_tokens) AS output FROM attempts {where} "
                "GROUP BY state",
                values,
            ).fetchall()
        of = {row["state"]: row for row in rows}
        answered, lost, sent = of.get("answered"), of.get("lost"), of.get("sent")
        usage = Usage()
        if answered:
            usage = Usage(answered["input"], answered["cache_write"], answered["cache_read"], answered["output"])
        return Ledger(
            requests=answered["count"] if answered else 0,
            spent_usd=answered["cost"] if answered else 0.0,
            open_usd=sent["reserved"] if sent else 0.0,
            lost=lost["count"] if lost else 0,
            lost_usd=lost["reserved"] if lost else 0.0,
            usage=usage,
        )

    def counted_usd(self, account: str) -> float:
        """What counts against an account's budget."""
        with self._explained(), self._lock:
            row = self._db.execute("SELECT counted_usd FROM accounts WHERE account = ?", [account]).fetchone()
        return row["counted_usd"] if row else 0.0

    def token_rates(self, model: str) -> tuple[float, float] | None:
        """(input tokens per byte sent, output tokens per answer) of a model so far; None before its first answer."""
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
        with self._explained(), self._transaction() as db:
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")  # one writer at a time: what is read stays true until it is committed
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as those of the lab."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            advice = "make it writable, or write judge.store=FILE"
            if "disk is full" in str(error):  # SQLite: "database or disk is full"; a path may hold the word too
                advice = "free space there"
            elif "locked" in str(error):
                advice = f"another process has held it for {BUSY_S:.0f} s"
            raise StorageError(f"{self.path} cannot be written or read: {error}; {advice}") from error
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"{self.path} is damaged or no store of judges: {error}; restore it from a copy, or move it away and "
                "pay again for what it held"
            ) from error


def item_name(batch: str, attempt_id: int) -> str:
    """What an item of a batch is called at the service."""
    return f"{batch}-{attempt_id}"


def _attempt_id(item: str) -> int:
    return int(item.rpartition("-")[2])


def _count(db: sqlite3.Connection, account: str, usd: float) -> None:
    """Add to what counts against an account's budget."""
    db.execute(
        "INSERT INTO accounts VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET counted_usd = counted_usd + ?",
        [account, usd, usd],
    )


def _reply(row: sqlite3.Row) -> Reply:
    usage = Usage(row["input_tokens"], row["cache_write_tokens"], row["cache_read_tokens"], row["output_tokens"])
    return Reply(
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


def _request_json(request: Request) -> str:
    """A request as it is kept beside its reply: what was asked must be readable without the code that asked it."""
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
    for begin in range(0, len(values), AT_ONCE):
        yield values[begin : begin + AT_ONCE]


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)
