"""The real SDKs of Anthropic and OpenAI against a server on this machine: errors, stored answers, and costs."""

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
from rlhf_lab.packs.judging.judges.backends.openai_compatible import OpenAIBackend
from rlhf_lab.packs.judging.judges.backends.settings import OpenAICompatible
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.client import estimate
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.pairwise import Candidates, comparison_requests
from rlhf_lab.packs.judging.judges.requests import CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.service import ServiceAnswer
from rlhf_lab.packs.judging.judges.store import Store


def test_answers_come_in_order_and_are_paid_once(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path)
    numbers = [*range(20), 3, 7]
    responses = client.complete_many([question(i) for i in numbers])
    assert [completion.text for completion in responses] == [f"an answer to question {i}" for i in numbers]
    assert all(completion.stop == "end" for completion in responses)
    assert server.billed_requests == 20
    assert sum(completion.cost_usd for completion in responses) == pytest.approx(server.billed_usd(PRICES[kind]))
    again = connect(server.url, kind, tmp_path).complete_many([question(i) for i in range(22)])
    assert [completion.stored for completion in again] == [True] * 20 + [False] * 2
    assert again[0].cost_usd == 0 and again[0].usage == responses[0].usage
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
    by_question = {requested.question: requested.body for requested in server.asked}
    with_schema, simple = by_question["question 0"], by_question["question 1"]
    if kind == "anthropic":
        assert with_schema["system"] == [
            {"type": "text", "text": "You judge replies.", "cache_control": {"type": "ephemeral"}}
        ]
        assert with_schema["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
        assert "system" not in simple and "output_config" not in simple and "temperature" not in simple
    else:
        assert with_schema["messages"][0] == {"role": "system", "content": "You judge replies."}
        assert with_schema["response_format"]["json_schema"]["schema"] == schema
        assert [message["role"] for message in simple["messages"]] == ["user"]
        assert "response_format" not in simple and simple["temperature"] == 0
    assert with_schema["max_tokens"] == 64


def test_openai_itself_is_told_the_limit_by_its_new_name(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    body = OpenAIBackend(OpenAICompatible(model="gpt-6-luna", temperature=None)).body(question(0))
    assert body["max_completion_tokens"] == 64
    assert "max_tokens" not in body and "temperature" not in body


@pytest.mark.parametrize("structured, form", [("json_object", {"type": "json_object"}), ("none", None)])
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
        (lambda: status(429, retry_after=in_half_a_second()), 0.2),
        (lambda: status(529), 0.0),
    ],
    ids=["seconds", "date", "529"],
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


def test_a_storm_meets_one_attempt_at_a_time(server, kind, tmp_path):
    """The first wave is as wide as there are threads; then one attempt runs alone until one gets through."""
    client = connect(server.url, kind, tmp_path, parallel=16, retries=6)
    refusals = 16 + 5
    server.wait_s = 0.02
    server.always = lambda asked: status(529, retry_after="0.02") if asked.number < refusals else None
    responses = client.complete_many([question(i) for i in range(40)])
    assert len(responses) == 40
    assert len(server.asked) == 40 + refusals
    assert server.most_at_once <= 16
    assert_ledger_is_the_servers(client, server, kind)


def test_a_storm_that_does_not_end_is_not_hammered(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, parallel=16, retries=3)
    server.wait_s = 0.02
    server.always = lambda asked: status(529)
    with pytest.raises(JudgeUnavailable, match=r"does not answer \(4 attempts\)"):
        client.complete_many([question(i) for i in range(100)])
    # a wave of 16, then single attempts, until one of the threads has made its fourth
    assert len(server.asked) <= 16 * 3 + 1
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
    assert "2 of 5 requests are answered and stored" in message
    assert len(server.asked) == 3
    server.always = lambda asked: None
    client.complete_many([question(i) for i in range(5)])
    assert server.billed_requests == 5


def test_a_request_that_may_be_rejected_ends_no_other(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path, parallel=1)
    server.always = lambda asked: status(400, "prompt is too long") if asked.question == "question 1" else None
    requests = [replace(question(i), may_be_rejected=True) for i in range(3)]
    responses = client.complete_many(requests)
    assert [completion.stop for completion in responses] == ["end", "rejected", "end"]
    assert "prompt is too long" in responses[1].text
    server.always = lambda asked: None  # a response of that kind is not kept
    assert [completion.stop for completion in client.complete_many(requests)] == ["end"] * 3
    assert question(1).digest({}) == requests[1].digest({})


@pytest.mark.parametrize("code, hint", [(401, "api_key_env"), (404, "judge.model"), (403, "")])
def test_a_wrong_key_or_model_says_what_to_look_at(server, kind, tmp_path, code, hint):
    server.always = lambda asked: status(code, "no")
    with pytest.raises(JudgeUnavailable, match=hint or "403"):
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


def test_a_service_that_is_down_and_back(server, kind, tmp_path):
    """Nothing is lost or paid twice, whatever was answered before it went down."""
    client = connect(server.url, kind, tmp_path, parallel=2, retries=1)
    server.always = lambda asked: reset(charged=False) if asked.number >= 6 else None
    with pytest.raises(JudgeUnavailable, match="6 of 20 requests are answered and stored"):
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
    text = {
        "question 0": Said("I won't.", "refused"),
        "question 1": Said("x" * 1000, "truncated"),
        "question 2": Said("no JSON {"),
    }
    server.answer = lambda asked: text[asked.question]
    client = connect(server.url, kind, tmp_path)
    responses = client.complete_many([question(i) for i in range(3)])
    assert [completion.stop for completion in responses] == ["refused", "truncated", "end"]
    assert responses[0].text == "I won't." and len(responses[1].text) == 256 and responses[2].text == "no JSON {"
    assert [completion.stored for completion in client.complete_many([question(i) for i in range(3)])] == [True] * 3
    assert server.billed_requests == 3
    assert_ledger_is_the_servers(client, server, kind)


def test_a_filter_that_answers_with_an_error_is_a_refusal(server, kind, tmp_path):
    fault = status(400, "Output blocked by content filtering policy")
    fault.body = fault.body.replace(b'"code": null', b'"code": "content_filter"')
    server.faults = [fault]
    client = connect(server.url, kind, tmp_path)
    completion = client.complete_many([question(0)])[0]
    assert completion.stop == "refused" and completion.cost_usd == 0
    assert client.complete_many([question(0)])[0].stored
    assert len(server.asked) == 1


def test_half_a_character_does_not_stop_the_store(server, kind, tmp_path):
    """JSON may hold half of a surrogate pair: a model that is cut within an emoji says so."""
    respond = server.respond

    def cut(asked, batch=False):
        text, response = respond(asked)
        return text, json.loads(json.dumps(response).replace("HALF", "\\ud83d"))

    server.answer = lambda asked: Said("HALF of it")
    server.respond = cut
    assert connect(server.url, kind, tmp_path).complete_many([question(0)])[0].text == "\ufffd of it"


def test_half_a_character_in_a_question_does_not_stop_it(server, kind, tmp_path):
    """A row of a JSONL file may hold it too."""
    half = "half \ud83d of it"
    client = connect(server.url, kind, tmp_path)
    pair = Candidates(half, half, "another", reference=half)
    requests = [*comparison_requests(pair), CompletionRequest(({"role": "user", "content": half},), system=half)]
    assert estimate(client, requests).to_ask == 3
    client.complete_many(requests)
    assert {requested.question for requested in server.asked} >= {"half \ufffd of it"}
    assert all(completion.stored for completion in client.complete_many(requests))


@pytest.mark.parametrize(
    "usage, stop, is_believed",
    [
        (Usage(input_tokens=100, output_tokens=50), "end", True),
        (Usage(cache_read_tokens=100, output_tokens=50), "end", True),
        (Usage(input_tokens=100, output_tokens=1), "end", False),
        (Usage(input_tokens=1, output_tokens=50), "end", False),
        (Usage(input_tokens=100), "refused", True),  # the words may be the service's own
        (None, "end", False),
    ],
)
def test_fewer_tokens_than_the_texts_can_have_are_not_believed(usage, stop, is_believed, kind, tmp_path):
    channel: Channel = connect("http://127.0.0.1:9", kind, tmp_path).channel
    requested = channel.question(CompletionRequest(({"role": "user", "content": "word " * 100},), max_tokens=100))
    completion = channel.completion(requested, ServiceAnswer("word " * 50, stop, usage))
    assert (completion.cost_usd < requested.reserve_usd) is is_believed
    assert completion.usage == (usage if is_believed else Usage())


# --- budget


def test_waiting_for_another_process_is_said(server, kind, tmp_path, monkeypatch):
    """Its attempt is lost too when nobody can be waiting any more, so that the request is sent again.

    The attempt becomes that old when the wait has been reported: no clock decides which of the two comes first.
    """
    output_text = []

    def hear(text, **options):
        output_text.append(text)
        with sqlite3.connect(tmp_path / "judges.sqlite") as db:
            db.execute("UPDATE attempts SET began = began - 7200")

    monkeypatch.setattr("rlhf_lab.packs.judging.judges.client.SAID_AFTER_S", 0.0)
    monkeypatch.setattr("rlhf_lab.packs.judging.judges.client.console", SimpleNamespace(inform=hear))
    client = connect(server.url, kind, tmp_path, parallel=1)
    client.channel.store.max_attempt_s = 3600.0
    client.channel.store.start(client.channel.question(question(0)), "run", None)
    with sqlite3.connect(tmp_path / "judges.sqlite") as db:
        db.execute("UPDATE attempts SET owner = 'another-host/1/x:1'")
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    assert client.ledger.lost == 1
    assert len(output_text) == 1 and "another process is sending the same request" in output_text[0]


def test_lost_attempts_count_against_the_budget(server, kind, tmp_path):
    each = connect(server.url, kind, tmp_path).channel.question(question(0)).reserve_usd
    client = connect(server.url, kind, tmp_path, budget_usd=2.5 * each, parallel=1, retries=5)
    server.always = lambda asked: reset()
    with pytest.raises(BudgetExceeded, match=r"next request, .* 2 requests whose answer never arrived"):
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
    assert spent <= after.max_cost_usd <= before.max_cost_usd
    assert "6 to send: about" in str(after) and "at most $" in str(after)
    # tokens are those of all requests to send
    alone = [estimate(client, [question(i)]) for i in range(10, 13)]
    together = estimate(client, [question(i) for i in range(10, 13)])
    assert together.input_tokens == sum(each.input_tokens for each in alone) > alone[0].input_tokens
    assert together.output_tokens == sum(each.output_tokens for each in alone) > alone[0].output_tokens


def test_a_server_of_ones_own_charges_nothing(server, tmp_path):
    client = connect(server.url, "openai_compatible", tmp_path, model="my-model")
    assert "nothing is charged (a self-hosted server)" in str(estimate(client, [question(0)]))
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
    assert Store(tmp_path / "judges.sqlite").ledger("run").requests == 1


def test_a_judge_of_a_run_and_a_missing_library(server, kind, tmp_path, monkeypatch):
    """Requests of a stage are named after its directory, in the store of its outputs."""
    url = server.url if kind == "anthropic" else server.openai_url
    config = checked("sft", f"judge={kind}", f"judge.base_url={url}", "judge.model=mine", f"outputs={tmp_path}")
    directory = tmp_path / "runs" / "sft-1"
    corpus = SimpleNamespace(oracle=None, rubric=None)
    run = SimpleNamespace(config=config, directory=directory, corpus=corpus, device="cpu", note=lambda text: None)
    judge = judge_of(run)
    assert [completion.text for completion in judge.complete_many([question(0)])] == ["an answer to question 0"]
    assert Store(tmp_path / "judges.sqlite").ledger("sft-1").requests == 1
    library = "anthropic" if kind == "anthropic" else "openai"
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=f"judge={kind} needs a library.*rlhf_lab.judge"):
        judge_of(run)


# counts of 0 once made a budget of 3 requests pay for 20; 10³⁰ has more digits than SQLite holds, once a traceback
@pytest.mark.parametrize("factor", [0, 50, -1, 10**30])
def test_usage_beyond_what_a_request_can_have_costs_what_was_reserved(
    factor, server, kind, tmp_path, monkeypatch, capsys
):
    """A server cannot spend the budget, or give some of it back, by counting: $ reserved is an upper bound."""
    monkeypatch.setattr(judge_server, "COUNTED", factor)
    client = connect(server.url, kind, tmp_path)
    reserved = client.channel.question(question(0)).reserve_usd
    (completion,) = client.complete_many([question(0)])
    assert completion.cost_usd == reserved > 0
    assert factor != 10**30 or completion.usage == Usage()
    assert client.ledger.spent_usd == client.channel.store.counted_usd("run") == reserved
    assert all(tokens >= 0 for tokens in astuple(client.ledger.usage))
    client.complete_many([question(1)])
    printed = " ".join(capsys.readouterr().out.split())
    if factor in (0, 50) or (factor < 0 and kind == "anthropic"):  # counts below zero are none to OpenAI's backend
        assert printed.count("Compare the ledger with the service's bill") == 1
