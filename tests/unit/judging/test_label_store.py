"""Labels on disk: appended, taken back by events, kept through a kill, in a blind order; and the cost of a label."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_judge import FakeJudge
from judge_server import PRICES, JudgeServer, connect, question

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.packs.judging.judges.context import label_cost
from rlhf_lab.packs.judging.labels import command
from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, LabelItem, draw, other_side, shown_first
from rlhf_lab.packs.judging.labels.session import LabelSession
from rlhf_lab.packs.judging.labels.store import LabelStore, OutOfDate


def items(count: int = 6) -> list[LabelItem]:
    return [LabelItem(f"i{k}", str(k // 2), f"\n\nHuman: {k}?\n\nAssistant:", f"a{k}", f"b{k}") for k in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> LabelStore:
    opened = LabelStore(tmp_path / "x.labels.sqlite", create=True)
    opened.start(items(), seed=0)
    return opened


def label(store: LabelStore, event: str, item: str, winner: str | None = FIRST, who: str = "ana") -> None:
    store.label(event, who, item, winner=winner, shown=FIRST, seconds=2.0)


def events(store: LabelStore) -> list[tuple[str, str]]:
    with sqlite3.connect(store.path) as connection:
        return connection.execute("SELECT kind, item FROM events ORDER BY number").fetchall()


def test_items_come_in_order_and_progress_counts_them(store):
    assert store.next_item("ana") == items()[0]
    label(store, "e0", "i0")
    label(store, "e1", "i1", "tie")
    label(store, "e2", "i2", None)
    assert store.next_item("ana") == items()[3]
    progress = store.progress("ana")
    assert (progress.total, progress.labelled, progress.ties, progress.skipped, progress.left) == (6, 2, 1, 1, 3)
    assert progress.median_seconds == 2.0
    assert [(given.item.id, given.winner) for given in store.labels()] == [("i0", FIRST), ("i1", "tie")]
    assert store.skips() == 1


def test_undo_is_an_event_and_brings_the_item_back(store):
    label(store, "e0", "i0")
    label(store, "e1", "i1", SECOND)
    store.undo("u0", "ana", store.last_answer("ana"))
    assert store.next_item("ana").id == "i1"
    store.undo("u1", "ana", store.last_answer("ana"))
    assert store.next_item("ana").id == "i0" and not store.labels()
    label(store, "e2", "i0", "tie")
    assert [(given.item.id, given.winner) for given in store.labels()] == [("i0", "tie")]
    assert events(store) == [("label", "i0"), ("label", "i1"), ("undo", "i1"), ("undo", "i0"), ("label", "i0")]


def test_an_answer_that_is_sent_twice_is_kept_once(store):
    label(store, "e0", "i0")
    label(store, "e0", "i0")
    last = store.last_answer("ana")
    assert len(events(store)) == 1
    with pytest.raises(OutOfDate, match="another window"):  # another event: a second window
        label(store, "e1", "i0", SECOND)
    store.undo("u0", "ana", last)
    store.undo("u0", "ana", last)
    assert len(events(store)) == 2
    with pytest.raises(OutOfDate, match="not the last"):
        store.undo("u1", "ana", last)
    with pytest.raises(OutOfDate, match="not in the store"):
        label(store, "e2", "elsewhere")


def test_what_is_stored_cannot_be_changed(store):
    label(store, "e0", "i0")
    with sqlite3.connect(store.path) as connection:
        for statement in ("DELETE FROM events", "UPDATE events SET winner = 'second'"):
            with pytest.raises(sqlite3.IntegrityError, match="only appended"):
                connection.execute(statement)


def test_annotators_do_not_see_each_other(store):
    label(store, "e0", "i0")
    label(store, "e1", "i0", SECOND, who="ben")
    label(store, "e2", "i1", SECOND, who="ben")
    assert store.next_item("ana").id == "i1" and store.next_item("ben").id == "i2"
    store.undo("u0", "ben", store.last_answer("ben"))
    assert [(given.annotator, given.item.id) for given in store.labels()] == [("ana", "i0"), ("ben", "i0")]


def test_a_restart_goes_on_and_keeps_what_is_not_drawn_again(store):
    label(store, "e0", "i0")
    store.close()
    again = LabelStore(store.path, create=True)
    again.start(items()[1:4], seed=0)
    assert again.progress("ana").labelled == 0 and again.progress("ana").total == 3
    assert again.last_answer("ana") is None  # an answer to an item that is not shown cannot be taken back unseen
    assert len(again.labels()) == 1
    again.start(items(), seed=0)
    assert again.next_item("ana").id == "i1"
    with pytest.raises(ConfigError, match="started with seed=0"):
        again.start(items(), seed=1)


def test_a_judge_may_change_and_texts_may_not(store):
    label(store, "e0", "i0")
    judged = dataclasses.replace(items()[0], winner=SECOND, score=0.0)
    store.start([judged], seed=0)
    assert store.labels()[0].item == judged
    with pytest.raises(ConfigError, match="another comparison with the id 'i0'"):
        store.start([dataclasses.replace(judged, first="other")], seed=0)
    assert store.labels()[0].item == judged


KILLED = """
import os, signal, sys
from pathlib import Path
from rlhf_lab.core.database import transaction
from rlhf_lab.packs.judging.labels.store import LabelStore
store = LabelStore(Path(sys.argv[1]))
for number in range(3):
    store.label(f"e{number}", "ana", f"i{number}", winner="first", shown="first", seconds=1.0)
    print(number, flush=True)
with transaction(store._connection):  # killed within a transaction, after its last statement
    store._append("half", "i3", "ana", "label", "first", "first", 1.0, None)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing_that_was_acknowledged(store):
    assert store._value("PRAGMA journal_mode") == "wal"
    assert store._value("PRAGMA synchronous") == 2  # FULL: the log is flushed at every commit
    store.close()
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL and done.stdout.split() == ["0", "1", "2"], done.stderr
    again = LabelStore(store.path)
    assert [given.item.id for given in again.labels()] == ["i0", "i1", "i2"]
    label(again, "half", "i3")  # what was half written is not there, and can be sent again
    assert len(again.labels()) == 4


def test_the_order_follows_from_seed_and_annotator_alone():
    many = items(400)
    assert draw(many, 0) == draw(many[::-1], 0) != draw(many, 1)
    assert draw(many, 0, 10) == draw(many, 0)[:10]
    sides = [shown_first(item.id, 0, "ana") for item in many]
    assert sides == [shown_first(item.id, 0, "ana") for item in many]
    assert 150 < sides.count(FIRST) < 250
    for differs in ([shown_first(i.id, 0, "ben") for i in many], [shown_first(i.id, 1, "ana") for i in many]):
        assert 150 < sum(a == b for a, b in zip(sides, differs, strict=True)) < 250
    assert other_side(FIRST) == SECOND and other_side(SECOND) == FIRST


def test_files_that_hold_no_labels(tmp_path):
    with pytest.raises(DataError, match="nothing has been labelled yet"):
        LabelStore(tmp_path / "none.sqlite")
    (tmp_path / "text.sqlite").write_text("something else that is long enough to be read as a header" * 4)
    with pytest.raises(DataError, match="cannot be used for labels"):
        LabelStore(tmp_path / "text.sqlite", create=True)
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(DataError, match="not a label store"):
        LabelStore(tmp_path / "other.sqlite", create=True)
    assert os.listdir(tmp_path).count("other.sqlite") == 1


def test_what_the_service_billed_divided_by_the_labels(tmp_path):
    notes: list[str] = []
    run = SimpleNamespace(note=notes.append)
    with JudgeServer() as server:
        client = connect(server.url, "anthropic", tmp_path)
        client.complete_many([question(i) for i in range(8)])
        billed = server.billed_usd(PRICES["anthropic"])
        assert billed > 0
        cost = label_cost(run, client, 4)
        assert cost == {"judge/usd": pytest.approx(billed), "judge/usd_per_label": pytest.approx(billed / 4)}
        assert not undeclared(cost)
        # another run reads the stored answers for nothing
        other = connect(server.url, "anthropic", tmp_path, account="other")
        other.complete_many([question(i) for i in range(8)])
        assert label_cost(run, other, 4)["judge/usd"] == 0
        assert "judge/usd_per_label" not in label_cost(run, client, 0)
    assert f"${billed:.4f} in total, ${billed / 4:.2g} for each of 4 labels" in notes[0] and "no label" in notes[2]


def test_a_judge_without_a_ledger_has_no_cost():
    assert label_cost(SimpleNamespace(note=pytest.fail), FakeJudge(lambda request: ""), 3) == {}


def test_a_person_s_time(tmp_path):
    """(6 + 12) s / 2 = 9 s per label; at $40 an hour 9/3600 · 40 = $0.10. Labels of others and skips do not count."""
    store = LabelStore(tmp_path / "x.labels.sqlite", create=True)
    items = [LabelItem(f"i{k}", str(k), f"\n\nHuman: {k}?\n\nAssistant:", "a", "b") for k in range(4)]
    store.start(items, seed=0)
    for item, who, winner, seconds in (("i0", "ana", "first", 6), ("i1", "ana", "tie", 12), ("i0", "ben", "first", 99)):
        store.label(f"{who}{item}", who, item, winner=winner, shown="first", seconds=seconds)
    store.label("skip", "ana", "i2", winner=None, shown="first", seconds=50)
    assert LabelSession(store, "ana", 0, "", 40.0).summary()[1] == "9.0 s per label, $0.1 per label"
    assert LabelSession(store, "ana", 0, "").summary()[1] == "9.0 s per label"
    assert len(LabelSession(store, "eve", 0, "").summary()) == 1


@pytest.mark.parametrize("text", ["0", "-3", "nan", "1e400", "thirty"])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"usd_per_hour=.*expected a number above 0, such as 30"):
        command.run(["x.jsonl", f"usd_per_hour={text}"])
