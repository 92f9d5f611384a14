"""Tools through the transport: the real SDKs hold conversations with calls, which are kept and paid once."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path

import pytest
from judge_server import PRICES, Said, assert_ledger_is_the_servers, connect, hang, in_turn, start_client, wait_until

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import MALFORMED, call_tool, function_call, text_tool
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.backends.simulated import SimulatedBackend
from rlhf_lab.packs.judging.judges.client import estimate, takes_tools
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage, with_call_ids
from rlhf_lab.packs.judging.judges.store import Store

POPULATION = {"Oslo": "709,000", "Bergen": "291,000"}
SEARCH = text_tool("search", "Looks a city up.", {"city": "its name"}, lambda city: POPULATION.get(city, "unknown"))
TOOLS = {"search": SEARCH}
OSLO, BERGEN = ("search", {"city": "Oslo"}), ("search", {"city": "Bergen"})
ASK = Message(role="user", content="How many people live in Oslo?")


def request(*messages: Message, **fields) -> CompletionRequest:
    values = {"system": "Use the tools.", "max_tokens": 64, "tools": (SEARCH.definition,)} | fields
    return CompletionRequest(messages or (ASK,), **values)


def hold(client, *messages: Message, rounds: int = 4, **fields) -> list[Completion]:
    """A conversation in which every call is answered by its tool, until nothing is called."""
    conversation, responses = [*messages] or [ASK], []
    for _ in range(rounds):
        response = client.complete_many([request(*conversation, **fields)])[0]
        responses.append(response)
        conversation.append(response.message)
        for call in response.tool_calls:
            done = call_tool(TOOLS, call["function"]["name"], call["function"]["arguments"], call["id"])
            conversation.append(Message(role="tool", name=done.name, tool_call_id=done.id, content=done.result))
        if not response.tool_calls:
            break
    return responses


# --- conversations


def test_a_conversation_with_a_call(server, kind, tmp_path):
    server.answer = in_turn(Said("Let me look.", calls=[OSLO]), Said("709,000 people."))
    client = connect(server.url, kind, tmp_path)
    assert takes_tools(client)
    first, second = hold(client)
    assert first.text == "Let me look." and first.stop == "end"
    assert [call["function"] for call in first.tool_calls] == [{"name": "search", "arguments": {"city": "Oslo"}}]
    assert first.tool_calls[0]["id"] and first.tool_calls[0]["type"] == "function"
    assert (second.text, second.tool_calls) == ("709,000 people.", ())
    # both protocols are read into the same conversation
    requested = server.asked[1]
    assert [message["role"] for message in requested.messages] == ["user", "assistant", "tool"]
    assert requested.messages[-1]["content"] == "709,000"
    assert requested.messages[-1]["tool_call_id"] == first.tool_calls[0]["id"]
    assert requested.tools == ["search"]
    assert_ledger_is_the_servers(client, server, kind)


def test_it_is_paid_once(server, kind, tmp_path):
    """Ids of calls are new in every answer, so only stored calls lead to stored completions."""
    server.answer = in_turn(Said(calls=[OSLO]), Said("709,000 people."))
    before = hold(connect(server.url, kind, tmp_path))
    again = hold(connect(server.url, kind, tmp_path))
    assert server.billed_requests == 2
    assert [response.stored for response in again] == [True, True]
    assert [(response.cost_usd, response.paid_cost_usd) for response in again] == [
        (0, response.cost_usd) for response in before
    ]
    assert [(response.text, response.tool_calls) for response in again] == [
        (response.text, response.tool_calls) for response in before
    ]
    assert [response.latency_s for response in again] == [response.latency_s for response in before]
    assert all(0 < response.latency_s < 10 for response in before)


def test_the_same_question_twice_in_one_call(server, kind, tmp_path):
    server.answer = in_turn(Said(calls=[OSLO]))
    paid, free = connect(server.url, kind, tmp_path).complete_many([request(), request()])
    assert free.tool_calls == paid.tool_calls != ()
    assert free.stored and not free.cost_usd
    assert free.paid_cost_usd == paid.paid_cost_usd == paid.cost_usd > 0


def test_calls_beside_each_other(server, kind, tmp_path):
    server.answer = in_turn(Said(calls=[OSLO, BERGEN]), Said("Oslo."))
    client = connect(server.url, kind, tmp_path)
    first, second = hold(client, Message(role="user", content="Which is larger?"))
    assert [call["function"]["arguments"]["city"] for call in first.tool_calls] == ["Oslo", "Bergen"]
    assert len({call["id"] for call in first.tool_calls}) == 2
    assert first.text == "" and second.text == "Oslo."
    sent = server.asked[1].body["messages"]
    if kind == "anthropic":  # the service takes all results in one message of the user's
        assert [message["role"] for message in sent] == ["user", "assistant", "user"]
        assert [block["type"] for block in sent[1]["content"]] == ["tool_use", "tool_use"]
        assert [block["content"] for block in sent[2]["content"]] == ["709,000", "291,000"]
    else:
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert_ledger_is_the_servers(client, server, kind)


def test_the_user_may_speak_behind_results(server, kind, tmp_path):
    call = function_call("search", {"city": "Oslo"}, "x1")
    conversation = (
        ASK,
        Message(role="assistant", content="", tool_calls=[call]),
        Message(role="tool", tool_call_id="x1", content="709,000"),
        Message(role="user", content="In words, please."),
    )
    connect(server.url, kind, tmp_path).complete_many([request(*conversation)])
    assert [message["content"] for message in server.asked[0].messages][-2:] == ["709,000", "In words, please."]


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_an_assistant_who_said_nothing(server, kind, nothing, tmp_path):
    """The agent asks again; Anthropic takes no message that is empty or white space alone."""
    silent = (ASK, Message(role="assistant", content=nothing), Message(role="user", content="Please answer."))
    connect(server.url, kind, tmp_path).complete_many([request(*silent)])
    assert server.asked[0].question == "Please answer."
    if kind == "anthropic":
        assert [message["role"] for message in server.asked[0].body["messages"]] == ["user", "user"]


def test_stop_texts(server, kind, tmp_path):
    server.answer = lambda asked: Said("Thought: look\nObservation: I made this up")
    response = connect(server.url, kind, tmp_path).complete_many([request(tools=(), stop=("\nObservation:", "###"))])[0]
    assert server.asked[0].stop == ["\nObservation:", "###"]
    assert (response.text, response.stop) == ("Thought: look", "end")


def test_in_batches(server, kind, tmp_path):
    server.answer = in_turn(Said(calls=[OSLO]), Said("709,000 people."))
    client = connect(server.url, kind, tmp_path, batches=True)
    first, second = hold(client, stop=("\n\n",))
    assert first.tool_calls[0]["function"]["arguments"] == {"city": "Oslo"}
    assert second.text == "709,000 people."
    assert len(server.batches) == 2 and all(charge[-1] for charge in server.charged)
    assert_ledger_is_the_servers(client, server, kind)


# --- what is sent


def test_what_is_sent(server, kind, tmp_path):
    connect(server.url, kind, tmp_path).complete_many([request(), request(system="")])
    with_system, without = sorted(
        (requested.body for requested in server.asked), key=lambda body: "system" not in str(body)
    )
    if kind == "anthropic":
        tool = {"name": "search", "description": "Looks a city up.", "input_schema": SEARCH.parameters}
        assert with_system["tools"] == [tool]  # cached with the instructions behind them
        assert "cache_control" in with_system["system"][0]
        assert without["tools"] == [tool | {"cache_control": {"type": "ephemeral"}}]
    else:
        assert with_system["tools"] == without["tools"] == [SEARCH.definition]


def test_tools_and_stop_texts_are_part_of_the_question():
    identity = {"kind": "anthropic"}
    simple = request(tools=())
    digests = {
        generated.digest(identity) for generated in (simple, request(), request(stop=("a",)), request(stop=("b",)))
    }
    assert len(digests) == 4
    # completions of requests from before tools existed are still found
    assert simple.digest(identity) == "103f8c2b9ce18f4119286b47a34752ad3ff8dd087e46a5f45f233685eb16c7c6"


def test_no_request_with_tools_costs_more_than_at_most(server, kind, tmp_path):
    client = connect(server.url, kind, tmp_path)
    simple, with_tools = (client.channel.question(request(tools=tools)) for tools in ((), (SEARCH.definition,)))
    definition = len(json.dumps(SEARCH.definition).encode())
    price = PRICES[kind][0] / 1e6
    assert with_tools.bytes > simple.bytes + definition / 2
    assert with_tools.reserve_usd > simple.reserve_usd + (with_tools.bytes - simple.bytes + 1000) * price
    assert estimate(client, [request()]).max_cost_usd == with_tools.reserve_usd


def test_ids_that_are_missing():
    """As in a conversation that was written by hand: results answer the calls before them, in order."""
    call = function_call("search", {"city": "Oslo"})
    messages = [
        ASK,
        Message(role="assistant", content="", tool_calls=[call, call]),
        Message(role="tool", content="a"),
        Message(role="tool", content="b"),
        Message(role="assistant", content="", tool_calls=[call | {"id": "own"}]),
        Message(role="tool", content="c"),
    ]
    numbered = list(with_call_ids(messages))
    assert [call["id"] for call in numbered[1]["tool_calls"]] == ["call00000", "call00001"]
    assert [message["tool_call_id"] for message in numbered if message["role"] == "tool"] == [
        *("call00000", "call00001", "own")
    ]
    assert "id" not in call


# --- what models get wrong


@pytest.mark.parametrize(
    "written, arguments",
    [
        ('{"city": "Os', {MALFORMED: '{"city": "Os'}),
        ('["Oslo"]', {MALFORMED: '["Oslo"]'}),
        ('{"city": NaN}', {MALFORMED: '{"city": NaN}'}),
        ("[" * 5000, {MALFORMED: "[" * 5000}),
        ("", {}),
        ('{"city": "\\ud800"}', {"city": "\ufffd"}),
    ],
    ids=["cut", "list", "nan", "deep", "empty", "half_a_surrogate"],
)
def test_arguments_that_are_no_object_are_paid_and_kept(server, tmp_path, written, arguments):
    server.answer = in_turn(Said(calls=[("search", written)]), Said("Sorry."))
    client = connect(server.url, "openai_compatible", tmp_path)
    first, second = hold(client)
    assert first.tool_calls[0]["function"]["arguments"] == arguments
    assert second.text == "Sorry."  # and the conversation continues with them
    told = server.asked[1].messages[-1]["content"]
    assert told.startswith("error: the arguments of search are no JSON object: ") == (MALFORMED in arguments)
    assert server.billed_requests == 2 and client.ledger.lost == 0
    assert hold(connect(server.url, "openai_compatible", tmp_path))[0].tool_calls == first.tool_calls


def test_a_call_that_holds_the_key(server, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-0123456789")
    server.answer = in_turn(Said(calls=[("search", {"city": "sk-secret-0123456789"})]))
    client = connect(server.url, kind, tmp_path, api_key_env="MY_KEY")
    assert client.complete_many([request()])[0].tool_calls[0]["function"]["arguments"] == {"city": "[key]"}


@pytest.mark.parametrize("batches", [False, True])
def test_thoughts_go_back_beside_the_calls_they_led_to(server, tmp_path, batches):
    """The service refuses a call without them. What was stored has them, and the next question stays the same."""
    server.thinks = True
    server.answer = in_turn(Said("Let me look.", calls=[OSLO, BERGEN]), Said(calls=[OSLO]), Said("709,000"))
    client = connect(server.url, "anthropic", tmp_path, batches=batches)
    before = hold(client)
    assert [response.text for response in before] == ["Let me look.", "", "709,000"]
    assert [[block["type"] for block in response.blocks] for response in before] == [
        ["thinking", "text", "tool_use", "tool_use"],
        ["redacted_thinking", "tool_use"],
        [],
    ]
    sent = (
        server.asked[2].body["messages"]
        if not batches
        else [*server.batches.values()][2].items[0]["params"]["messages"]
    )
    assert [message["content"] for message in sent if message["role"] == "assistant"] == [
        list(response.blocks) for response in before[:2]
    ]
    again = hold(connect(server.url, "anthropic", tmp_path))
    assert [response.stored for response in again] == [True] * 3 and again[0].blocks == before[0].blocks
    # other services and transcripts do without
    server.thinks = False
    connect(server.openai_url, "openai_compatible", tmp_path).complete_many([request(ASK, before[2].message, ASK)])
    assert "blocks" not in render_prompt([ASK, before[0].message])


def test_the_simulated_judge_calls_no_tools():
    assert not takes_tools(SimulatedBackend(Simulated(), oracle=None))
    with pytest.raises(ConfigError, match="calls no tools; use a model that does"):
        SimulatedBackend(Simulated(), oracle=None).complete_many([request()])


# --- processes and files

AGENT = """
import sys
from pathlib import Path
from judge_server import connect
url, kind, outputs, folder = sys.argv[1:]
sys.path.append(folder)
from test_judge_tools import hold
replies = hold(connect(url, kind, Path(outputs)))
print(len(replies), sum(reply.stored for reply in replies), replies[-1].text, flush=True)
"""


@pytest.mark.slow
def test_kill_9_in_the_second_round(server, kind, tmp_path):
    """The first round comes from the store, with its calls; the second is sent again, with the same key."""
    server.answer = in_turn(Said(calls=[OSLO]), Said("709,000 people."))
    server.keeps_keys = True
    server.always = lambda asked: hang(5.0) if asked.turn == 1 else None
    arguments = (AGENT, server.url, kind, tmp_path, Path(__file__).parent)
    process = start_client(*arguments)
    wait_until(lambda: server.billed_requests >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    server.always = lambda asked: None

    out, err = start_client(*arguments).communicate(timeout=60)
    assert out.split() == ["2", "1", "709,000", "people."], err
    assert server.billed_requests == 2
    assert_ledger_is_the_servers(connect(server.url, kind, tmp_path), server, kind)


def test_a_store_of_before_tools(server, kind, tmp_path):
    """Its completions stay valid, and it takes calls."""
    client = connect(server.url, kind, tmp_path / "other")
    simple = request(tools=())
    file = tmp_path / "judges.sqlite"
    Store(file).close()
    with sqlite3.connect(file) as db:  # the tables of 0.10
        for column in ("tool_calls", "latency_s", "blocks"):
            db.execute(f"ALTER TABLE replies DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 1")
        values = [client.channel.question(simple).digest, "paid long ago", "end", 7, 0, 0, 3, 0.5, "m", "{}", "{}", 1.0]
        db.execute(f"INSERT INTO replies VALUES ({', '.join('?' * len(values))})", values)
    server.answer = in_turn(Said(calls=[OSLO]), Said("709,000 people."))
    client = connect(server.url, kind, tmp_path)
    stored = client.complete_many([simple])[0]
    assert stored == Completion("paid long ago", "end", Usage(7, 0, 0, 3), stored=True)
    assert hold(client)[0].tool_calls
    assert server.billed_requests == 2
    # opened again, it is of the new version
    again = Store(file)
    assert again.completions([client.channel.question(simple).digest])
    assert sqlite3.connect(file).execute("PRAGMA user_version").fetchone()[0] == 3
