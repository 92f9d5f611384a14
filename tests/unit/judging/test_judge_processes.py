"""Processes that ask a service and are killed, interrupted, or ask the same: nothing is lost, nothing is paid twice."""

from __future__ import annotations

import signal

import pytest
from judge_server import PRICES, assert_ledger_is_the_servers, connect, hang, question, start_client, wait_until

pytestmark = pytest.mark.slow

CLIENT = """
import signal, sys
from pathlib import Path
from judge_server import connect, question
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
url, kind, outputs, first, last, parallel = sys.argv[1:]
client = connect(url, kind, Path(outputs), parallel=int(parallel))
print("ready", flush=True)
try:
    replies = client.complete_many([question(i) for i in range(int(first), int(last))])
except KeyboardInterrupt:
    print("stopped", flush=True)
    raise SystemExit(3)
print(len(replies), sum(reply.stored for reply in replies), flush=True)
"""


@pytest.mark.parametrize("keeps_keys", [True, False], ids=["keeps_keys", "keeps_none"])
def test_kill_9_between_the_request_and_its_answer(server, kind, tmp_path, keeps_keys):
    server.keeps_keys = keeps_keys
    server.always = lambda asked: hang(1.0) if asked.number in (5, 6) else None
    process = start_client(CLIENT, server.url, kind, tmp_path, 0, 12, 2)
    wait_until(lambda: server.billed_requests >= 7)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    server.always = lambda asked: None

    client = connect(server.url, kind, tmp_path)
    assert client.ledger.lost == 2  # opening the store declares what the killed process had under way
    answered = client.ledger.requests
    assert answered >= 3
    responses = client.complete_many([question(i) for i in range(12)])
    assert [response.text for response in responses] == [f"an answer to question {i}" for i in range(12)]
    assert sum(response.stored for response in responses) == answered
    if keeps_keys:
        assert server.billed_requests == 12
        assert_ledger_is_the_servers(client, server, kind)
    else:
        assert server.billed_requests == 14
        assert client.ledger.spent_usd <= server.billed_usd(PRICES[kind]) <= client.ledger.counted_usd


def test_an_interrupt_keeps_what_is_under_way(server, kind, tmp_path):
    server.wait_s = 0.3
    process = start_client(CLIENT, server.url, kind, tmp_path, 0, 100, 4)
    wait_until(lambda: len(server.asked) >= 8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 3 and "stopped" in out, err
    client = connect(server.url, kind, tmp_path)
    assert client.ledger.lost == 0
    assert client.ledger.requests == server.billed_requests < 40
    assert_ledger_is_the_servers(client, server, kind)


def test_two_processes_that_ask_the_same_pay_once(server, kind, tmp_path):
    server.wait_s = 0.02
    processes = [start_client(CLIENT, server.url, kind, tmp_path, *rows, 4) for rows in ((0, 30), (10, 40))]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "30 " in out, err
    assert server.billed_requests == 40
    assert_ledger_is_the_servers(connect(server.url, kind, tmp_path), server, kind)
