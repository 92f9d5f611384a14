"""The real SDKs of Anthropic and OpenAI against a server on this machine: what goes wrong, is kept, and costs."""

from __future__ import annotations

import email.utils
import json
import socket
import sqlite3
import sys
import threading
import time
from dataclasses import astuple, replace
from types import SimpleNamespace

import judge_server
import pytest
from judge_server import (
    PRICES,
    JudgeServer,
    Said,
    assert_ledger_is_the_servers,
    connect,
    hang,
    malformed,
    question,
    reset,
    status,
)
from support import checked

from rlhf_lab.core.errors import BudgetExceeded, JudgeUnavailable, MissingDependency
from rlhf_lab.packs.judging.judges.caller import judge_of
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.client import estimate
from rlhf_lab.packs.judging.judges.pairwise import Candidates, comparison_requests
from rlhf_lab.packs.judging.judges.requests import Request, Usage
from rlhf_lab.packs.judging.judges.service import Answer
from rlhf_lab.packs.judging.judges.store import Store

KINDS = ("anthropic", "openai_compatible")


@pytest.fixture
def server():
    with JudgeServer() as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_answers_come_in_order_and_are_paid_once(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path)
    numbers = [*range(20), 3, 7]
    replies = client.complete_many([question(i) for i in numbers])
    assert [reply.text for reply in replies] == [f"an answer to question {i}" for i in numbers]
    assert all(reply.stop == "end" for reply in replies)
    assert server.billed_requests == 20
    assert sum(reply.cost_usd for reply in replies) == pytest.approx(server.billed_usd(PRICES[kind]))
    again = connect(server.url, kind, tmp_path).complete_many([question(i) for i in range(22)])
    assert [reply.stored for reply in again] == [True] * 20 + [False] * 2
    assert again[0].cost_usd == 0 and again[0].usage == replies[0].usage
    assert server.billed_requests == 22
    assert_ledger_is_the_servers(client, server, kind)


def test_another_draw_model_or_version_is_another_question(server, kind, tmp_path):
    connect(server.url, kind, tmp_path).complete_many([question(0), question(0, draw=1), question(0, max_tokens=65)])
    connect(server.url, kind, tmp_path, version="2").complete_many([question(0)])
    connect(server.url, kind, tmp_path, model="other", input_usd=1, output_usd=1).complete_many([question(0)])
    assert server.billed_requests == 5


def test_what_is_sent(server, kind, tmp_path):
    schema = {"type": "object", "properties": {"winner": {"type": "string"}}, "additionalProperties": False}
    connect(server.url, kind, tmp_path).complete_many([question(0, schema=schema), question(1, system="")])
    by_question = {asked.question: asked.body for asked in server.asked}
    with_schema, plain = by_question["question 0"], by_question["question 1"]
    if kind == "anthropic":
        assert with_schema["system"] == [
            {"type": "text", "text": "You judge replies.", "cache_control": {"type": "ephemeral"}}
        ]
        assert with_schema["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
        assert "system" not in plain and "output_config" not in plain and "temperature" not in plain
    else:
        assert with_schema["messages"][0] == {"role": "system", "content": "You judge replies."}
        assert with_schema["response_format"]["json_schema"]["schema"] == schema
        assert [message["role"] for message in plain["messages"]] == ["user"]
        assert "response_format" not in plain and plain["temperature"] == 0
    assert with_schema["max_tokens"] == 64


def test_openai_itself_is_told_the_limit_by_its_new_name(monkeypatch):
    from rlhf_lab.packs.judging.judges.backends.openai_compatible import OpenAIBackend
    from rlhf_lab.packs.judging.judges.backends.settings import OpenAICompatible

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    body = OpenAIBackend(OpenAICompatible(model="gpt-6-luna", temperature=None)).body(question(0))
    assert body["max_completion_tokens"] == 64
    assert "max_tokens" not in body and "temperature" not in body


@pytest.mark.parametrize(
    "structured, form", [("json_object", {"type": "json_object"}), ("none", None)], ids=["object", "none"]
)
def test_weaker_forms_of_structure(server, tmp_path, structured, form):
    client = connect(server.url, "openai_compatible", tmp_path, structured=structured)
    client.complete_many([question(0, schema={"type": "object"})])
    assert server.asked[0].body.get("response_format") == form


# --- errors that pass


def in_half_a_second() -> str:
    return email.utils.formatdate(time.time() + 1.5, usegmt=True)


@pytest.mark.parametrize(
    "fault, least_s",
    [
        (lambda: status(429, retry_after="0.2"), 0.2),
        (lambda: status(429, retry_after_ms="150"), 0.15),
        (lambda: status(429, retry_after=in_half_a_second()), 0.2),
        (lambda: status(529), 0.0),
        (lambda: status(500), 0.0),
        (lambda: status(503), 0.0),
    ],
    ids=["seconds", "milliseconds", "date", "529", "500", "503"],
)
def test_refused_attempts_are_repeated_when_the_service_says(server, kind, tmp_path, fault, least_s):
    client = connect(server.url, kind, tmp_path, parallel=1)
    server.faults = [fault()]
    started = time.monotonic()
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    assert time.monotonic() - started >= least_s
    assert len(server.asked) == 2
    assert client.ledger.lost == 0  # the service took no work on
    assert_ledger_is_the_servers(client, server, kind)


def test_the_sdk_itself_repeats_nothing(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, retries=0)
    server.always = lambda asked: status(529)
    with pytest.raises(JudgeUnavailable):
        client.complete_many([question(0)])
    assert len(server.asked) == 1


def test_a_storm_meets_one_attempt_at_a_time(server, kind, tmp_path):
    """The first wave is as wide as there are threads; then one attempt goes ahead until one gets through."""
    client = connect(server.url, kind, tmp_path, parallel=16, retries=6)
    refusals = 16 + 5
    server.wait_s = 0.02
    server.always = lambda asked: status(529, retry_after="0.02") if asked.number < refusals else None
    replies = client.complete_many([question(i) for i in range(40)])
    assert len(replies) == 40
    first_wave = 16
    assert len(server.asked) == 40 + refusals
    assert server.most_at_once <= first_wave
    assert_ledger_is_the_servers(client, server, kind)


def test_a_storm_that_does_not_end_is_not_hammered(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, parallel=16, retries=3)
    server.always = lambda asked: status(529)
    with pytest.raises(JudgeUnavailable, match="does not answer"):
        client.complete_many([question(i) for i in range(100)])
    # a wave of 16, then single attempts: each of the threads may fail once more before one of them gives up
    assert len(server.asked) <= 16 * 4
    assert client.ledger.counted_usd == 0


@pytest.mark.parametrize("fault", [lambda: hang(1.0), reset, malformed, lambda: malformed(b'"hello"')])
def test_an_attempt_whose_answer_never_came_is_counted_as_lost(server, kind, tmp_path, fault):
    """It may have been charged. A service that keeps no keys charges the repetition too; the budget covers both."""
    client = connect(server.url, kind, tmp_path, request_timeout_s=0.4)
    server.faults = [fault()]
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    ledger = client.ledger
    assert (ledger.requests, ledger.lost) == (1, 1)
    assert server.billed_requests == 2
    assert server.billed_usd(PRICES[kind]) <= ledger.counted_usd
    assert ledger.spent_usd == pytest.approx(server.billed_usd(PRICES[kind]) / 2, rel=0.5)


@pytest.mark.parametrize("fault", [lambda: hang(0.8), reset, malformed])
def test_a_service_that_keeps_keys_charges_a_lost_attempt_once(server, kind, tmp_path, fault):
    client = connect(server.url, kind, tmp_path, request_timeout_s=0.4)
    server.keeps_keys = True
    server.faults = [fault()]
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    assert server.billed_requests == 1
    assert client.ledger.lost == 0
    assert_ledger_is_the_servers(client, server, kind)


# --- errors that stay


def test_a_bad_request_is_not_repeated_and_names_itself(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, parallel=1)
    server.always = lambda asked: status(400, "max_tokens is too large") if asked.question == "question 2" else None
    with pytest.raises(JudgeUnavailable) as caught:
        client.complete_many([question(i) for i in range(5)])
    message = str(caught.value)
    assert "max_tokens is too large" in message and "'question 2'" in message
    assert "2 of 5 requests are answered and kept" in message
    assert len(server.asked) == 3
    server.always = lambda asked: None
    client.complete_many([question(i) for i in range(5)])
    assert server.billed_requests == 5


def test_a_request_that_may_be_rejected_ends_no_other(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, parallel=1)
    server.always = lambda asked: status(400, "prompt is too long") if asked.question == "question 1" else None
    requests = [replace(question(i), may_be_rejected=True) for i in range(3)]
    replies = client.complete_many(requests)
    assert [reply.stop for reply in replies] == ["end", "rejected", "end"]
    assert "prompt is too long" in replies[1].text
    server.always = lambda asked: None  # a reply of that kind is not kept
    assert [reply.stop for reply in client.complete_many(requests)] == ["end"] * 3
    assert question(1).digest({}) == requests[1].digest({})


@pytest.mark.parametrize("code, advice", [(401, "api_key_env"), (404, "judge.model"), (403, "")])
def test_a_wrong_key_or_model_says_what_to_look_at(server, kind, tmp_path, code, advice):
    server.always = lambda asked: status(code, "no")
    with pytest.raises(JudgeUnavailable, match=advice or "403"):
        connect(server.url, kind, tmp_path).complete_many([question(0)])
    assert len(server.asked) == 1


def test_a_redirect_is_not_followed_with_the_key(server, kind, tmp_path):
    with JudgeServer() as other:
        target = other.url + ("/v1/messages" if kind == "anthropic" else "/v1/chat/completions")
        server.always = lambda asked: status(307, "elsewhere", Location=target)
        with pytest.raises(JudgeUnavailable, match="307"):
            connect(server.url, kind, tmp_path).complete_many([question(0)])
        assert other.asked == [] and other.keys == []


def test_a_service_that_asks_for_hours_is_not_waited_for(server, kind, tmp_path):
    server.always = lambda asked: status(429, "daily limit", retry_after="7200")
    with pytest.raises(JudgeUnavailable, match=r"asks to wait 7200 s: .*daily limit"):
        connect(server.url, kind, tmp_path).complete_many([question(0)])


def test_a_service_that_is_down_and_back(kind, tmp_path):
    """Nothing is lost or paid twice, whatever was answered before it went down."""
    with JudgeServer() as server:
        client = connect(server.url, kind, tmp_path, parallel=2, retries=1)
        server.always = lambda asked: reset(charged=False) if asked.number >= 6 else None
        with pytest.raises(JudgeUnavailable, match="6 of 20 requests are answered and kept"):
            client.complete_many([question(i) for i in range(20)])
        server.always = lambda asked: None
        client.complete_many([question(i) for i in range(20)])
        assert server.billed_requests == 20


def test_nobody_listens(kind, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = connect(url, kind, tmp_path, retries=2)
    with pytest.raises(JudgeUnavailable, match=r"does not answer \(3 attempts\): ConnectError"):
        client.complete_many([question(0)])
    assert client.ledger.counted_usd == 0  # nothing ever left


# --- answers that are no judgement


def test_refusals_and_cut_answers_are_kept(server, kind, tmp_path):
    said = {
        "question 0": Said("I won't.", "refused"),
        "question 1": Said("x" * 1000, "truncated"),
        "question 2": Said("no JSON {"),
    }
    server.answer = lambda asked: said[asked.question]
    client = connect(server.url, kind, tmp_path)
    replies = client.complete_many([question(i) for i in range(3)])
    assert [reply.stop for reply in replies] == ["refused", "truncated", "end"]
    assert replies[0].text == "I won't." and len(replies[1].text) == 256 and replies[2].text == "no JSON {"
    assert [reply.stored for reply in client.complete_many([question(i) for i in range(3)])] == [True] * 3
    assert server.billed_requests == 3
    assert_ledger_is_the_servers(client, server, kind)


def test_a_filter_that_answers_with_an_error_is_a_refusal(server, kind, tmp_path):
    fault = status(400, "Output blocked by content filtering policy")
    fault.body = fault.body.replace(b'"code": null', b'"code": "content_filter"')
    server.faults = [fault]
    client = connect(server.url, kind, tmp_path)
    reply = client.complete_many([question(0)])[0]
    assert reply.stop == "refused" and reply.cost_usd == 0
    assert client.complete_many([question(0)])[0].stored
    assert len(server.asked) == 1


def test_half_a_character_does_not_stop_the_store(server, kind, tmp_path):
    """JSON may hold half of a surrogate pair: a model that is cut within an emoji says so."""
    respond = server.respond

    def cut(asked, batch=False):
        said, response = respond(asked)
        return said, json.loads(json.dumps(response).replace("HALF", "\\ud83d"))

    server.answer = lambda asked: Said("HALF of it")
    server.respond = cut
    assert connect(server.url, kind, tmp_path).complete_many([question(0)])[0].text == "? of it"


def test_half_a_character_in_a_question_does_not_stop_it(server, kind, tmp_path):
    """A row of a JSONL file may hold it too."""
    half = "half \ud83d of it"
    client = connect(server.url, kind, tmp_path)
    pair = Candidates(half, half, "another", reference=half)
    requests = [*comparison_requests(pair), Request(({"role": "user", "content": half},), system=half)]
    assert estimate(client, requests).to_ask == 3
    client.complete_many(requests)
    assert {asked.question for asked in server.asked} >= {"half ? of it"}
    assert all(reply.stored for reply in client.complete_many(requests))


def test_an_answer_without_a_count_costs_the_most_that_it_can(server, kind, tmp_path):
    channel: Channel = connect(server.url, kind, tmp_path).channel
    asked = channel.question(question(0))
    assert channel.reply(asked, Answer("fine")).cost_usd == asked.reserve_usd > 0


def test_a_server_that_counts_nothing_costs_what_was_reserved(server, tmp_path):
    respond = server.respond
    server.respond = lambda asked, batch=False: (respond(asked)[0], respond(asked)[1] | {"usage": None})
    client = connect(server.url, "openai_compatible", tmp_path, input_usd=1.0, output_usd=2.0)
    reply = client.complete_many([question(0)])[0]
    at_most = client.channel.question(question(0)).reserve_usd
    assert reply.cost_usd == at_most > 64 * 2e-6


# --- budget


def test_the_budget_is_never_exceeded_with_32_threads(server, kind, tmp_path):
    server.wait_s = 0.005
    server.answer = lambda asked: Said("x" * 256)  # all that it may say: the reservation is as tight as it gets
    client = connect(server.url, kind, tmp_path, parallel=32)
    each = client.channel.question(question(100)).reserve_usd
    budget = 20 * each
    client = connect(server.url, kind, tmp_path, parallel=32, budget_usd=budget)
    seen = []
    begin = client.channel.store.begin

    def watched(*args):
        attempt = begin(*args)
        seen.append(client.channel.store.counted_usd("run"))
        return attempt

    client.channel.store.begin = watched
    with pytest.raises(BudgetExceeded, match=r"judge.budget_usd=.* does not cover the next request"):
        client.complete_many([question(i) for i in range(100, 400)])
    assert max(seen) <= budget
    assert server.billed_usd(PRICES[kind]) <= budget
    # what was reserved and not used goes to further requests: more than 20 are answered
    assert server.billed_requests > 20
    assert client.ledger.spent_usd + each > budget
    assert_ledger_is_the_servers(client, server, kind)


def test_a_reservation_of_others_on_the_account_is_waited_for(server, kind, tmp_path):
    """The budget covers one request at a time; the other one costs nothing in the end."""
    each = connect(server.url, kind, tmp_path).channel.question(question(0)).reserve_usd
    client = connect(server.url, kind, tmp_path, budget_usd=1.5 * each)
    other = Store(tmp_path / "judges.sqlite")
    attempt = other.begin(client.channel.question(question(1)), "run", None)
    release = threading.Timer(0.5, other.failed, (attempt, "refused"))
    release.start()
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    release.join()


def test_waiting_for_another_process_is_said(server, kind, tmp_path, monkeypatch, capsys):
    """And its attempt is lost when nobody can be waiting any more, after 1 s here, so that it is asked again."""
    monkeypatch.setattr("rlhf_lab.packs.judging.judges.client.SAID_AFTER_S", 0.0)
    client = connect(server.url, kind, tmp_path, parallel=1)
    client.channel.store.longest_attempt_s = 1.0
    client.channel.store.begin(client.channel.question(question(0)), "run", None)
    with sqlite3.connect(tmp_path / "judges.sqlite") as db:
        db.execute("UPDATE attempts SET owner = 'another-host/1/x:1', began = began - 0.7")
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    assert client.ledger.lost == 1
    assert capsys.readouterr().out.count("another process is asking the same") == 1


def test_lost_attempts_count_against_the_budget(server, kind, tmp_path):
    each = connect(server.url, kind, tmp_path).channel.question(question(0)).reserve_usd
    client = connect(server.url, kind, tmp_path, budget_usd=2.5 * each, parallel=1, retries=5)
    server.always = lambda asked: reset()
    with pytest.raises(BudgetExceeded, match="2 requests whose answer never came"):
        client.complete_many([question(0)])
    assert server.billed_requests == 2


def test_the_budget_is_of_the_account_over_all_its_restarts(server, kind, tmp_path):
    each = connect(server.url, kind, tmp_path).channel.question(question(0)).reserve_usd
    connect(server.url, kind, tmp_path, budget_usd=each).complete_many([question(0)])
    with pytest.raises(BudgetExceeded, match="0 of 1 requests are answered"):
        connect(server.url, kind, tmp_path, budget_usd=each).complete_many([question(1)])
    # stored answers are free, and another account has a budget of its own
    assert connect(server.url, kind, tmp_path, budget_usd=0.0).complete_many([question(0)])[0].stored
    connect(server.url, kind, tmp_path, account="other", budget_usd=each).complete_many([question(1)])


def test_the_estimate_says_about_and_at_most(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path)
    before = estimate(client, [question(i) for i in range(10)])
    assert (before.requests, before.stored, before.to_ask, before.measured) == (10, 0, 10, False)
    client.complete_many([question(i) for i in range(4)])
    after = estimate(client, [question(i) for i in range(10)])
    assert (after.requests, after.stored, after.to_ask, after.measured) == (10, 4, 6, True)
    spent_before = client.ledger.spent_usd
    client.complete_many([question(i) for i in range(10)])
    spent = client.ledger.spent_usd - spent_before
    # of the services, one caches the instructions, which `about` does not count on
    assert after.about_usd == pytest.approx(spent, rel=0.2)
    assert spent <= after.at_most_usd <= before.at_most_usd
    assert "6 to ask: about" in str(after) and "at most $" in str(after)


def test_a_server_of_ones_own_charges_nothing(server, tmp_path):
    client = connect(server.url, "openai_compatible", tmp_path, model="my-model")
    assert "nothing is charged (a server of one's own)" in str(estimate(client, [question(0)]))
    assert client.complete_many([question(0)])[0].cost_usd == 0


def test_two_clients_of_one_process_pay_once(server, kind, tmp_path):
    server.wait_s = 0.02
    clients = [connect(server.url, kind, tmp_path) for _ in range(2)]
    threads = [
        threading.Thread(target=client.complete_many, args=([question(i) for i in range(20)],)) for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.billed_requests == 20


def test_replies_keep_what_was_asked(server, kind, tmp_path):
    """Whoever reads the file later needs no code of ours."""
    connect(server.url, kind, tmp_path).complete_many([question(0)])
    row = sqlite3.connect(tmp_path / "judges.sqlite").execute("SELECT request, identity, text FROM replies").fetchone()
    assert json.loads(row[0])["messages"] == [{"role": "user", "content": "question 0"}]
    assert json.loads(row[1])["kind"] == kind
    assert Store(tmp_path / "judges.sqlite").ledger().requests == 1


def test_a_judge_of_a_run_and_a_missing_library(server, kind, tmp_path, monkeypatch):
    """What a stage asks goes by the name of its folder, into the store of its outputs."""
    url = server.url if kind == "anthropic" else server.openai_url
    config = checked("sft", f"judge={kind}", f"judge.base_url={url}", "judge.model=mine", f"outputs={tmp_path}")
    folder = tmp_path / "runs" / "sft-1"
    run = SimpleNamespace(
        config=config,
        folder=folder,
        corpus=SimpleNamespace(oracle=None, rubric=None),
        device="cpu",
        note=lambda text: None,
    )
    judge = judge_of(run)
    assert [reply.text for reply in judge.complete_many([question(0)])] == ["an answer to question 0"]
    assert Store(tmp_path / "judges.sqlite").ledger("sft-1").requests == 1
    library = "anthropic" if kind == "anthropic" else "openai"
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=f"judge={kind} needs a library.*rlhf_lab.judge"):
        judge_of(run)


@pytest.mark.parametrize("factor", [50, -1])
def test_usage_beyond_what_a_request_can_have_costs_what_was_reserved(
    factor, server, kind, tmp_path, monkeypatch, capsys
):
    """A server cannot spend the budget, or give some of it back, by counting: $ reserved is an upper bound."""
    monkeypatch.setattr(judge_server, "COUNTED", factor)
    client = connect(server.url, kind, tmp_path)
    reserved = client.channel.question(question(0)).reserve_usd
    (reply,) = client.complete_many([question(0)])
    assert reply.cost_usd == reserved > 0
    assert client.ledger.spent_usd == client.channel.store.counted_usd("run") == reserved
    assert all(tokens >= 0 for tokens in astuple(client.ledger.usage))
    client.complete_many([question(1)])
    printed = " ".join(capsys.readouterr().out.split())
    if factor > 0 or kind == "anthropic":  # counts below zero are none to OpenAI's backend
        assert printed.count("Compare the ledger with the bill of the service") == 1


def test_counts_that_are_no_numbers_of_tokens(server, kind, tmp_path, monkeypatch):
    """More digits than SQLite holds; once a traceback."""
    monkeypatch.setattr(judge_server, "COUNTED", 10**30)
    client = connect(server.url, kind, tmp_path)
    (reply,) = client.complete_many([question(0)])
    assert reply.cost_usd == client.channel.question(question(0)).reserve_usd and reply.usage == Usage()
