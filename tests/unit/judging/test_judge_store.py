"""The store of paid completions: its ledger adds up, its budget holds, and a killed process's open calls are known."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlhf_lab.core.errors import ArtifactError, StorageError
from rlhf_lab.packs.judging.judges.backends.settings import OpenAICompatible
from rlhf_lab.packs.judging.judges.client import JudgeClient
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.ledger import (
    AlreadyRequested,
    LedgerAttempt,
    OverBudget,
    PendingRequest,
    is_gone,
    this_process,
)
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.store import Store

REPLY = Completion("fine", "end", Usage(10, 1, 2, 3), cost_usd=0.25)


def ask(number: int, reserve_usd: float = 1.0) -> PendingRequest:
    request = CompletionRequest(({"role": "user", "content": f"question {number}"},))
    identity = {"kind": "anthropic", "model": "m"}
    return PendingRequest(
        request.digest(identity), request, identity, bytes=40, reserve_usd=reserve_usd, price="table 1"
    )


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "judges.sqlite")
    yield opened
    opened.close()


def row(store: Store, table: str = "attempts") -> sqlite3.Row:
    return store._db.execute(f"SELECT * FROM {table} ORDER BY rowid DESC").fetchone()


def test_an_attempt_reserves_and_its_reply_settles(store):
    attempt = store.start(ask(0), "run", None)
    assert isinstance(attempt, LedgerAttempt)
    assert store.counted_usd("run") == 1.0
    store.store_completion(attempt, REPLY, "m-2026")
    assert store.counted_usd("run") == 0.25
    stored = store.start(ask(0), "run", 0.0)  # costs nothing, so the budget does not matter
    assert stored == Completion("fine", "end", Usage(10, 1, 2, 3), 0.0, stored=True)
    assert store.completions([ask(0).digest, ask(1).digest]) == {ask(0).digest: stored}
    ledger = store.ledger("run")
    assert (ledger.requests, ledger.spent_usd, ledger.usage) == (1, 0.25, REPLY.usage)
    assert row(store)["price"] == "table 1"


@pytest.mark.parametrize("method, end, counted", [("failed", "failed", 0.0), ("mark_lost", "lost", 1.0)])
def test_attempts_without_an_answer(store, method, end, counted):
    attempt = store.start(ask(0), "run", None)
    getattr(store, method)(attempt, "529 overloaded", 529)
    assert store.counted_usd("run") == store.ledger("run").counted_usd == counted
    assert (row(store)["state"], row(store)["why"], row(store)["status"]) == (end, "529 overloaded", 529)
    assert isinstance(store.start(ask(0), "run", None), LedgerAttempt)


def test_the_same_question_is_under_way_once(store):
    store.start(ask(0), "run", None)
    with pytest.raises(AlreadyRequested):
        store.start(ask(0), "other", None)
    assert store.is_requested(ask(0).digest) and not store.is_requested(ask(1).digest)


def test_the_key_stays_when_an_attempt_is_repeated(store, tmp_path):
    """So that a service that keeps keys charges once; after an error of the service's own it is another."""
    first = store.start(ask(0), "run", None)
    store.mark_lost(first, "timeout")
    second = store.start(ask(0), "run", None)
    store.failed(second, "429", 429)
    third = store.start(ask(0), "run", None)
    assert first.idempotency_key == second.idempotency_key == third.idempotency_key
    store.failed(third, "500", 500)
    assert store.start(ask(0), "run", None).idempotency_key != first.idempotency_key
    assert store.start(ask(1), "run", None).idempotency_key != first.idempotency_key
    assert Store(tmp_path / "other").start(ask(0), "run", None).idempotency_key != first.idempotency_key


@pytest.mark.parametrize("repeated", [True, False])
def test_an_answer_frees_what_was_lost(store, repeated):
    """A service that keeps keys repeats its answer; or the answer that was thought lost arrives after all."""
    attempt = store.start(ask(0), "run", None)
    store.mark_lost(attempt, "timeout")
    answered = store.start(ask(0), "run", None) if repeated else attempt
    store.store_completion(answered, REPLY, "m", repeated=repeated)
    assert store.counted_usd("run") == store.ledger("run").counted_usd == 0.25
    assert store.ledger("run").lost == 0


def test_the_budget_counts_what_is_under_way(store):
    store.start(ask(0), "run", 2.0)
    store.start(ask(1), "run", 2.0)
    with pytest.raises(OverBudget):
        store.start(ask(2), "run", 2.0)
    assert isinstance(store.start(ask(2), "other", 2.0), LedgerAttempt)
    assert store.counted_usd("run") == 2.0


def test_32_threads_and_two_stores_never_exceed_the_budget(tmp_path):
    stores = [Store(tmp_path / "judges.sqlite") for _ in range(2)]
    refused = []

    def work(thread: int) -> None:
        own = stores[thread % 2]
        for number in range(8):
            try:
                attempt = own.start(ask(100 * thread + number, 0.3), "run", 10.0)
            except OverBudget:
                refused.append(number)
                continue
            assert own.counted_usd("run") <= 10.0 + 1e-9
            if number % 3:
                own.store_completion(attempt, REPLY, "m")
            else:
                own.mark_lost(attempt, "reset")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = stores[0].ledger("run")
    assert refused
    assert 9.7 < ledger.counted_usd <= 10.0 + 1e-9
    assert stores[1].counted_usd("run") == pytest.approx(ledger.counted_usd, abs=1e-9)


def test_token_rates_are_those_of_the_model(store):
    assert store.token_rates("m") is None
    store.store_completion(store.start(ask(0), "run", None), REPLY, "m")
    store.store_completion(store.start(ask(1), "run", None), Completion("x", "end", Usage(7, 0, 0, 1)), "m")
    assert store.token_rates("m") == ((13 + 7) / 80, 2.0)
    assert store.token_rates("another") is None


def test_a_power_cut_loses_nothing_that_was_paid_for(store, tmp_path):
    def read(opened: Store, setting: str) -> object:
        return opened._db.execute(f"PRAGMA {setting}").fetchone()[0]

    assert (read(store, "synchronous"), read(store, "journal_mode")) == (2, "wal")  # 2: every commit is on the disk
    paid, free = (
        JudgeClient(
            None, OpenAICompatible(model="m", input_usd=usd, output_usd=usd), JudgeContext("run", tmp_path / "out")
        )
        for usd in (1.0, 0.0)
    )
    assert [read(client.channel.store, "synchronous") for client in (paid, free)] == [2, 1]


# --- files that are no store


def test_a_store_of_a_newer_lab_is_refused(tmp_path):
    path = tmp_path / "judges.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 4")
    with pytest.raises(ArtifactError, match="version 4, but this rlhf_lab reads up to 3"):
        Store(path)


def test_files_of_others_are_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    with pytest.raises(ArtifactError, match="no judge store"):
        Store(path)
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be read as one: " + "x" * 200)
    with pytest.raises(ArtifactError, match="damaged or no judge store"):
        Store(text)
    assert text.read_text().startswith("no database")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"judge\.store=FILE"):
        Store(tmp_path / "file" / "judges.sqlite")


def test_a_full_disk_says_so_and_loses_nothing(store):
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="free disk space"):
        for number in range(1000):
            store.start(ask(number), "run", None)
    store._db.execute("PRAGMA max_page_count = 100000")
    assert store.counted_usd("run") == store.ledger("run").counted_usd  # the transaction that failed left nothing
    assert isinstance(store.start(ask(5000), "run", None), LedgerAttempt)


def test_an_answer_that_could_not_be_written_is_given_up(store, monkeypatch):
    """Its thread has gone; the next one that needs it must not wait for it."""
    attempt = store.start(ask(0), "run", None)

    def failing_disk(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as full:
        full.setattr(store, "_answer", failing_disk)
        with pytest.raises(StorageError):
            store.store_completion(attempt, REPLY, "m")
    assert not store.is_requested(ask(0).digest)
    assert store.lose_abandoned() == 1
    assert store.counted_usd("run") == store.ledger("run").counted_usd == 1.0


# --- processes


def of_another_host(store: Store, table: str, age_s: float) -> None:
    """The latest row was written by a process of another host, some seconds ago."""
    store._db.execute(
        f"UPDATE {table} SET owner = 'another-host/1/x:1', began = began - ? "
        f"WHERE rowid = (SELECT max(rowid) FROM {table})",
        [age_s],
    )


def test_an_attempt_of_another_host_is_lost_when_it_is_too_old(store):
    """By hand: the maximum wait is 1200 s. Before that the request is waited for, and nobody here knows its outcome."""
    store.start(ask(0), "run", None)
    of_another_host(store, "attempts", 1100)
    assert store.is_requested(ask(0).digest) and store.lose_abandoned() == 0
    of_another_host(store, "attempts", 200)
    assert not store.is_requested(ask(0).digest) and store.lose_abandoned() == 1
    assert store.ledger("run").lost_usd == 1.0


def test_a_batch_is_looked_for_when_given_up_and_one_of_another_host_after_an_hour(store):
    name, _ = store.start_batch([ask(1)], "run", None)
    assert store.is_being_sent(*store.open_batches([ask(1).digest]))
    store.give_up_sending(name)
    assert not store.is_being_sent(*store.open_batches([ask(1).digest]))
    store.start_batch([ask(0)], "run", None)
    of_another_host(store, "batches", 3500)
    assert store.is_being_sent(*store.open_batches([ask(0).digest]))
    of_another_host(store, "batches", 200)
    assert not store.is_being_sent(*store.open_batches([ask(0).digest]))


def test_a_spent_budget_may_pass_while_somebody_waits_for_an_answer(store):
    def refused() -> bool:
        with pytest.raises(OverBudget) as caught:
            store.start(ask(1), "run", 1.5)
        return caught.value.may_pass

    attempt = store.start(ask(0), "run", 1.5)
    assert refused()
    of_another_host(store, "attempts", 100)
    assert refused()
    of_another_host(store, "attempts", 1200)
    assert not refused()
    store.mark_lost(attempt, "timeout")
    assert not refused()


def test_owners():
    assert not is_gone(this_process())
    host, pid, _ = this_process().rsplit("/", 2)
    assert is_gone(f"{host}/{pid}/another boot:1")  # the number belongs to another process
    assert not is_gone("another-host/1/x:1")  # nobody here can tell
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    assert is_gone(f"{host}/{finished.pid}/x:1")


CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_judge_store import REPLY, ask
from rlhf_lab.packs.judging.judges.ledger import AlreadyRequested
from rlhf_lab.packs.judging.judges.store import Store
store = Store(Path({path!r}))
attempt = store.start(ask(0), "run", None)
if {state!r} == "answered":
    store.store_completion(attempt, REPLY, "m")
if {state!r} == "intent":
    store.start_batch([ask(1), ask(2)], "run", None)
if {state!r} == "sent":
    store.batch_sent(store.start_batch([ask(1), ask(2)], "run", None)[0], "remote-1")
print("there", flush=True)
time.sleep(60)
"""


def killed_in(path: Path, state: str) -> None:
    """A process reaches a state of the store and is killed there; while it lives, the state is its own."""
    code = CHILD.format(tests=str(Path(__file__).parent), path=str(path), state=state)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert child.stdout is not None and child.stdout.readline() == "there\n"
    if state == "in_flight":
        with pytest.raises(AlreadyRequested):
            Store(path).start(ask(0), "run", None)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def test_kill_9_while_a_request_is_under_way(tmp_path):
    path = tmp_path / "judges.sqlite"
    killed_in(path, "in_flight")
    store = Store(path)
    ledger = store.ledger("run")
    assert (ledger.lost, ledger.lost_usd, ledger.open_usd, store.counted_usd("run")) == (1, 1.0, 0.0, 1.0)
    assert isinstance(store.start(ask(0), "run", None), LedgerAttempt)
    # after the answer
    path = tmp_path / "answered.sqlite"
    killed_in(path, "answered")
    assert Store(path).start(ask(0), "run", None).text == "fine"


@pytest.mark.parametrize("state, remote", [("intent", ""), ("sent", "remote-1")])
def test_kill_9_with_a_batch(tmp_path, state, remote):
    """A batch is the service's: it continues without the process, and its reservation stays open."""
    path = tmp_path / "judges.sqlite"
    killed_in(path, state)
    store = Store(path)
    assert store.ledger("run").open_usd == 2.0
    (batch,) = store.open_batches([ask(2).digest])
    assert batch.remote == remote and is_gone(batch.owner)
    assert sorted(batch.digests.values()) == sorted([ask(1).digest, ask(2).digest])
    item = next(name for name, digest in batch.digests.items() if digest == ask(1).digest)
    assert store.question(item) == ask(1)
    assert store.item_answered(item, ask(1), REPLY, "m")
    assert not store.item_answered(item, ask(1), REPLY, "m")  # results may be read twice
    store.end_batch(batch.name, "done")
    assert store.open_batches([ask(1).digest, ask(2).digest]) == []
    # one result is there; of the other nobody knows
    assert store.counted_usd("run") == store.ledger("run").counted_usd == 1.0 + 0.25 + 1.0
    assert store.known_batches() == ({remote} if remote else set())
