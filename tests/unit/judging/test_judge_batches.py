"""Batches of both services: results in any order, partly expired, interrupted creations, a server that dies."""

from __future__ import annotations

import signal
import sqlite3
import threading

import pytest
from judge_server import (
    PRICES,
    Asked,
    Said,
    assert_ledger_is_the_servers,
    connect,
    hang,
    question,
    reset,
    start_client,
    status,
    wait_until,
)

from rlhf_lab.core.errors import BudgetExceeded, JudgeUnavailable
from rlhf_lab.packs.judging.judges import batches
from rlhf_lab.packs.judging.judges.service import ServiceError
from rlhf_lab.packs.judging.judges.store import Store


def questions(count: int) -> list:
    return [question(i) for i in range(count)]


def test_results_come_in_any_order_at_half_the_price(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, batches=True, batch_requests=4)
    server.batch_looks = 3
    responses = client.complete_many(questions(10))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(10)]
    assert len(server.batches) == 3
    assert all(charge[-1] for charge in server.charged)
    assert sum(completion.cost_usd for completion in responses) == pytest.approx(server.billed_usd(PRICES[kind]))
    assert_ledger_is_the_servers(client, server, kind)
    assert all(completion.stored for completion in client.complete_many(questions(10)))
    assert len(server.batches) == 3


def test_batches_are_no_larger_than_the_services_take(server, kind, tmp_path, monkeypatch):
    client = connect(server.url, kind, tmp_path, batches=True)
    monkeypatch.setattr(batches, "MOST_BYTES", 3 * client.channel.question(question(0)).bytes)
    client.complete_many(questions(7))
    assert [len(batch.items) for batch in server.batches.values()] == [3, 3, 1]


def test_names_of_items_are_what_the_services_allow(server, kind, tmp_path):
    connect(server.url, kind, tmp_path, batches=True).complete_many(questions(3))
    names = [item["custom_id"] for batch in server.batches.values() for item in batch.items]
    assert len(set(names)) == 3
    assert all(0 < len(name) <= 64 and name.replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize("fate", ["expired", "canceled"])
def test_items_that_were_not_worked_on_are_asked_again(server, kind, tmp_path, fate):
    seen: set[str] = set()

    def answer(asked: Asked) -> Said:
        first_time = asked.question not in seen
        seen.add(asked.question)
        is_late = first_time and int(asked.question.split()[1]) % 3 == 0
        return Said("", item=fate) if is_late else Said(f"an answer to {asked.question}")

    server.answer = answer
    client = connect(server.url, kind, tmp_path, batches=True)
    responses = client.complete_many(questions(9))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(9)]
    assert [len(batch.items) for batch in server.batches.values()] == [9, 3]
    assert_ledger_is_the_servers(client, server, kind)


def test_items_that_always_expire_end_with_a_message(server, kind, tmp_path):
    server.answer = lambda asked: Said("", item="expired") if asked.question == "question 1" else Said("fine")
    client = connect(server.url, kind, tmp_path, batches=True)
    with pytest.raises(JudgeUnavailable, match=r"came back from 3 batches without an answer.* 2 of 3 requests"):
        client.complete_many(questions(3))
    assert client.ledger.open_usd == 0


def test_a_refused_item_is_kept_and_a_wrong_one_named(server, kind, tmp_path):
    text = {"question 0": Said("I won't", "refused"), "question 1": Said("bad schema", item="errored")}
    server.answer = lambda asked: text.get(asked.question, Said("fine"))
    client = connect(server.url, kind, tmp_path, batches=True)
    with pytest.raises(JudgeUnavailable, match=r"bad schema.* 2 of 3 requests are answered and stored"):
        client.complete_many(questions(3))
    assert client.complete_many([question(0)])[0].stop == "refused"
    assert len(server.batches) == 1
    assert_ledger_is_the_servers(client, server, kind)


@pytest.mark.parametrize("arrived", [True, False], ids=["arrived", "lost_on_the_way"])
def test_a_creation_whose_answer_never_came_is_not_repeated_when_it_arrived(server, kind, tmp_path, arrived):
    """The service has the batch though the POST got no answer; or it has not, and the batch is sent once more."""
    # OpenAI's file comes first; its upload costs nothing
    server.faults = [None] * (kind == "openai_compatible") + [reset(charged=arrived)]
    client = connect(server.url, kind, tmp_path, batches=True)
    responses = client.complete_many(questions(5))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(5)]
    assert len(server.batches) == 1
    assert_ledger_is_the_servers(client, server, kind)


def test_another_batch_of_the_same_size_is_not_taken_for_ours(server, kind, tmp_path):
    """Anthropic keeps no name of a batch: only the names of its items tell."""
    other = connect(server.url, kind, tmp_path / "other", batches=True)
    other.complete_many([question(i) for i in range(100, 105)])
    server.faults = [None] * (kind == "openai_compatible") + [reset(charged=False)]
    client = connect(server.url, kind, tmp_path, batches=True)
    responses = client.complete_many(questions(5))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(5)]
    assert len(server.batches) == 2
    assert client.ledger.lost == 0  # else its attempts had been looked for among the other's results


def test_the_service_dies_while_a_batch_is_worked_on(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, batches=True, retries=1)
    server.get_faults = [reset()] * 2
    with pytest.raises(JudgeUnavailable, match=r"does not answer .*0 of 4 requests"):
        client.complete_many(questions(4))
    # back again: the same batch continues, also for a run that by now sends requests without batches
    responses = connect(server.url, kind, tmp_path).complete_many(questions(4))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(4)]
    assert len(server.batches) == 1
    assert_ledger_is_the_servers(client, server, kind)


def test_looks_that_fail_now_and_then_are_repeated(server, kind, tmp_path):
    server.batch_looks = 4
    server.get_faults = [None, status(529), None, reset(), None, status(500), None, reset()]
    client = connect(server.url, kind, tmp_path, batches=True)
    assert len(client.complete_many(questions(4))) == 4
    assert_ledger_is_the_servers(client, server, kind)


def test_results_that_break_off_are_read_again(server, kind, tmp_path):
    """Each answer is stored once, however often the results are read."""
    client = connect(server.url, kind, tmp_path, batches=True)
    read = client.channel.backend.batch_results
    broken = iter([True])

    def breaking(remote):
        for index, result in enumerate(read(remote)):
            if index == 2 and next(broken, False):
                raise ServiceError("reset", "lost", passing=True)
            yield result

    client.channel.backend.batch_results = breaking
    assert len(client.complete_many(questions(5))) == 5
    assert_ledger_is_the_servers(client, server, kind)


def test_a_batch_that_is_refused_as_a_whole(server, tmp_path):
    client = connect(server.url, "openai_compatible", tmp_path, batches=True)
    new_batch = server._new_batch

    def refused(items, metadata):
        batch = new_batch(items, metadata)
        batch.error, batch.looks_left, batch.results = "the model is not available in batches", 0, [("", Said(""), {})]
        return batch

    server._new_batch, server.look = refused, lambda batch: None
    with pytest.raises(JudgeUnavailable, match="not available in batches"):
        client.complete_many(questions(3))
    assert client.ledger.counted_usd == 0


def test_a_batch_that_another_key_sent_says_so(server, kind, tmp_path):
    server.get_faults = [reset()]
    with pytest.raises(JudgeUnavailable):
        connect(server.url, kind, tmp_path, batches=True, retries=0).complete_many(questions(3))
    server.batches.clear()
    with pytest.raises(JudgeUnavailable, match=r"batch_0 with .* does not exist for this key.*judge\.version"):
        connect(server.url, kind, tmp_path).complete_many(questions(3))


def test_the_budget_bounds_batches(server, kind, tmp_path):
    """The unused rest of a batch's reservation is free for the next batch."""
    each = connect(server.url, kind, tmp_path, batches=True).channel.question(question(0)).reserve_usd
    client = connect(server.url, kind, tmp_path, batches=True, budget_usd=4.5 * each)
    with pytest.raises(BudgetExceeded):
        client.complete_many(questions(200))
    assert len(server.batches) > 1
    assert len(server.batches["batch_0"].items) == 4
    assert server.billed_usd(PRICES[kind]) <= 4.5 * each
    assert_ledger_is_the_servers(client, server, kind)


def test_a_reservation_of_others_on_the_account_is_waited_for(server, kind, tmp_path):
    """The budget covers one request at a time; the other one costs nothing in the end."""
    each = connect(server.url, kind, tmp_path, batches=True).channel.question(question(0)).reserve_usd
    client = connect(server.url, kind, tmp_path, batches=True, budget_usd=1.5 * each)
    other = Store(tmp_path / "judges.sqlite")
    attempt = other.start(client.channel.question(question(1)), "run", None)
    release = threading.Timer(0.5, other.failed, (attempt, "refused"))
    release.start()
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    release.join()


def test_a_batch_that_another_host_never_sent_is_waited_for_and_given_up(server, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlhf_lab.packs.judging.judges.store.LONGEST_SENDING_S", 1.0)
    client = connect(server.url, kind, tmp_path, batches=True)
    name, _ = client.channel.store.start_batch([client.channel.question(question(0))], "run", None)
    with sqlite3.connect(tmp_path / "judges.sqlite") as db:
        db.execute("UPDATE batches SET owner = 'another-host/1/x:1'")
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    text = " ".join(capsys.readouterr().out.split())
    assert text.count(f"waiting for another process, which has been sending batch {name}") == 1
    assert len(server.batches) == 1


def test_others_results_of_a_shared_batch_are_kept_too(server, kind, tmp_path):
    """A call that needs half of a batch reads all of it: the other half was paid for."""
    client = connect(server.url, kind, tmp_path, batches=True, retries=0)
    server.get_faults = [reset()]
    with pytest.raises(JudgeUnavailable):
        client.complete_many(questions(6))
    other = connect(server.url, kind, tmp_path, account="other")
    assert len(other.complete_many(questions(3))) == 3
    assert all(completion.stored for completion in other.complete_many(questions(6)))
    assert (other.ledger.requests, client.ledger.requests) == (0, 6)  # who sent it pays
    assert_ledger_is_the_servers(client, server, kind)


CLIENT = """
import sys
from pathlib import Path
from judge_server import connect, question
url, kind, outputs = sys.argv[1:]
client = connect(url, kind, Path(outputs), batches=True, poll_s=0.05)
client.complete_many([question(i) for i in range(6)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("position", ["in_the_post", "while_waiting"])
def test_kill_9_of_the_client(server, kind, tmp_path, position):
    """Between the POST of a batch and its answer, and while it is worked on: one batch, paid once."""
    server.batch_looks = 10**6
    is_post = "/messages/batches" if kind == "anthropic" else "/v1/batches"
    if position == "in_the_post":
        server.always = lambda asked: hang(30.0) if asked.path.endswith(is_post) else None
    process = start_client(CLIENT, server.url, kind, tmp_path)
    wait_until(lambda: server.batches and (position == "in_the_post" or server.batches["batch_0"].looks_left < 10**6))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    server.always = lambda asked: None
    server.batches["batch_0"].looks_left = 2

    store = Store(tmp_path / "judges.sqlite")
    assert store.ledger("run").open_usd > 0  # the batch continues without its process
    store.close()
    client = connect(server.url, kind, tmp_path, batches=True)
    responses = client.complete_many(questions(6))
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in range(6)]
    assert len(server.batches) == 1
    assert_ledger_is_the_servers(client, server, kind)
