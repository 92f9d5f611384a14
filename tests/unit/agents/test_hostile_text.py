"""Text from outside becomes text that tokenizers, files, pages and SQLite take, and no parser needs quadratic time."""

from __future__ import annotations

import json
import random

import pytest

from rlhf_lab.core.files import MAX_DEPTH, append_jsonl, parse_json, read_jsonl, write_text
from rlhf_lab.core.redaction import redacted
from rlhf_lab.core.text import MAX_MARKS, is_well_formed, normalise, well_formed
from rlhf_lab.core.tools import MALFORMED, call_tool, function_call, read_arguments, text_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.data.transcript import parse, quote, render, response_message, response_text, unquote
from rlhf_lab.environments.maths.expressions import computed
from rlhf_lab.main import WRONG_INPUT, _run_to_status
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.models.tool_calls import CallFormat
from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.harness.multi_agent import read_queries
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn
from rlhf_lab.packs.code.sandbox.sandbox import checked_files
from rlhf_lab.packs.judging.judges.ledger import LedgerAttempt, PendingRequest
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.service import BatchStatus, ServiceAnswer, ServiceError
from rlhf_lab.packs.judging.judges.store import Store
from rlhf_lab.reports.page import _as_json, _backticks_as_code
from rlhf_lab.rewards.verifiers.equivalence import LONGEST, as_ballot
from rlhf_lab.rewards.verifiers.instructions import INSTRUCTIONS, count_sentences
from rlhf_lab.rewards.verifiers.stated import last_boxed, stated_answer

PIECES = (
    *("\ud83d", "\ude00", "\udcff", "\ud83d\ude00", "\0", "\u2028", "\u202e", "\r", "\r\n", "\ufeff", "\n\n", "\\"),
    *("e\u0301", "\u0315\u0300", "{", "}", "[", "]", '"', "<", "</script>", "<tool_call>", "</tool_call>", "a", "é"),
    *("\n\nHuman:", "\n\nCalls: ", "Action: echo[", "Answer:", "\\boxed{", "```", "\\ud83d", "😀", " ", "x" * 500),
)
HERMES = CallFormat("<tool_call>", None, "</tool_call>")


def hostile(seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choices(PIECES, k=rng.randint(1, 40)))


@pytest.fixture(scope="module")
def encoder():
    return Encoder(train_tokenizer(["some words"], 300))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    opened = Store(tmp_path_factory.mktemp("store") / "judges.sqlite", durable=False)
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(60))
def test_hostile_texts_pass_through_everything(seed, encoder, store, tmp_path):
    text = hostile(seed)
    clean = well_formed(text)
    clean.encode()
    # tokens
    assert encoder.decode(encoder.response(text)[:-1]) == f" {clean}"
    # transcripts
    assert unquote(quote(clean)) == clean
    assert parse(render([{"role": "user", "content": clean}])).messages[0]["content"] == clean
    # JSON, with escapes and without, and files
    for as_json in (json.dumps({text: [text]}), json.dumps({text: [text]}, ensure_ascii=False)):
        assert parse_json(as_json) == {clean: [clean]}
    append_jsonl(tmp_path / "rows.jsonl", [{"text": text}])
    assert read_jsonl(tmp_path / "rows.jsonl") == [{"text": clean}]
    write_text(tmp_path / "page.html", f"{_as_json(text)}{_backticks_as_code(text)}")
    assert b"</script>" not in (tmp_path / "page.html").read_bytes()
    # calls of tools
    written = f"<tool_call>{json.dumps({'name': 'echo', 'arguments': {'said': text}})}</tool_call>"
    output_text, calls = HERMES.read(f"before {written}")
    assert (output_text, calls) == ("before", [function_call("echo", {"said": clean})])
    HERMES.read(clean)
    calling = response_text({"role": "assistant", "content": "", "tool_calls": calls})
    assert response_message(calling)["tool_calls"] == calls
    echo = text_tool("echo", "says it", {"said": "what"}, lambda said: said + text)
    call = call_tool({"echo": echo}, "echo", {"said": text})
    assert is_well_formed([call.name, call.arguments, call.result])
    assert is_well_formed(read_move(f"Action: echo {json.dumps({'said': text})}", {"echo": echo}).arguments)
    # answers
    stated_answer(clean, lenient=True)
    lenient_score(clean, "a cat")
    trajectory = AgentTrajectory(text, (ModelTurn("agent", text, text),), error=text)
    assert is_well_formed([trajectory.answer, trajectory.turns[0].text, trajectory.error])
    # judges and their store
    identity = {"kind": "test", "model": text}
    request = CompletionRequest(({"role": "user", "content": text},), draw=seed)
    attempt = store.start(PendingRequest(f"{seed}", request, identity), text, None)
    assert isinstance(attempt, LedgerAttempt)
    store.store_completion(attempt, Completion(text, "end", Usage(), tool_calls=tuple(calls)), text)
    assert store.completions([f"{seed}"])[f"{seed}"].text == clean


def test_what_services_say_is_well_formed():
    answer = ServiceAnswer("\ud83d", model="m\ud83d", tool_calls=(function_call("f", {"x": "\ud83d"}),))
    assert (answer.text, answer.model) == ("\ufffd", "m\ufffd") and is_well_formed(answer.tool_calls)
    error = ServiceError("no\ud83d", "refused", code="\ud83d")
    assert (str(error), error.message, error.code) == ("no\ufffd", "no\ufffd", "\ufffd")
    assert BatchStatus(True, failed="\ud83d").failed == "\ufffd"


def test_a_command_that_is_not_utf8_is_refused(capsys):
    assert _run_to_status(["+recipe=dpo", "judge.model=\udcff"]) == WRONG_INPUT
    assert "word 2 of the command" in " ".join(capsys.readouterr().out.split())


def test_a_file_name_that_is_no_text_is_refused():
    with pytest.raises(Exception, match="not a file name"):
        checked_files({"a\ud83d": b""})


def test_json_that_could_not_be_written_again_is_refused():
    """json.loads reads some hundred levels more than json.dumps writes deeper in the stack: training ended there."""
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(deepest) is not None
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(f"[{deepest}]")
    arguments = f'{{"x": {deepest}}}'
    assert read_arguments(arguments) == {MALFORMED: arguments}
    _, [call] = HERMES.read(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert MALFORMED in call["function"]["arguments"]


N = 300_000
"""Characters for which quadratic time is minutes or hours; the linear functions below take milliseconds."""


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda: last_boxed("\\boxed{" * (N // 7) + "5}"), "5"),
        (lambda: count_sentences("Mr. " * (N // 4) + "A b."), 1),
        (lambda: count_sentences("." * N + "a"), 1),
        (lambda: INSTRUCTIONS["detectable_content:number_placeholders"][0]("[" * N, {"num_placeholders": 1}), False),
        (lambda: INSTRUCTIONS["detectable_format:title"][0]("<" * N, {}), False),
        (lambda: len(normalise("NFKD", "a" + "\u0315\u0300" * N)), 1 + MAX_MARKS),
        (lambda: lenient_score("a " * (N // 2) + "b", "a cat"), False),
        (lambda: lenient_score("answer: " * (N // 8) + "7", "7"), True),
        (lambda: lenient_score("hundred " * (N // 8), "a cat"), False),
        (lambda: len(redacted("1" * N)), N),
        (lambda: len(redacted("://:" * (N // 4))), N),
        (lambda: len(redacted("sk-" * (N // 3))), N),
        (lambda: as_ballot("1" * (LONGEST + 1)), "1" * (LONGEST + 1)),
        (lambda: len(as_ballot("1" * N + "!")), N + 1),
        (lambda: computed("9/7*" * (N // 4) + "1"), None),
        (lambda: len(HERMES.read("<tool_call>{" * (N // 12))[1]), N // 12),
        (lambda: len(CallFormat("", None, "").read('{"name": "a", "arguments": {}}' * (N // 30))[1]), N // 30),
    ],
)
def test_long_hostile_texts_take_linear_time(read, expected):
    assert read() == expected


@pytest.mark.parametrize("length", [10, 4_080, 4_090, 20_000])
def test_long_calls_are_read_whole(length):
    arguments = {"said": "é" * length, "more": [1.5, True, "\n"]}
    call = f"<tool_call>{json.dumps({'name': 'echo', 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
    assert HERMES.read(call * 2)[1] == [function_call("echo", arguments)] * 2


def test_a_plan_of_brackets_takes_linear_time():
    with pytest.raises(ValueError, match="JSON list"):
        read_queries("[" * N, 5)
