"""inspect's messages, tools and settings as requests and back, as plain data: packs/agents/inspect/messages.py."""

from __future__ import annotations

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import MALFORMED, function_call
from rlhf_lab.packs.agents.inspect.messages import check_settings, check_tool_choice, from_response, to_request
from rlhf_lab.packs.judging.judges.requests import Completion, Usage

USER = {"role": "user", "content": "hi"}
CALL = {"id": "call00000", "function": "search", "arguments": {"city": "Oslo"}, "type": "function"}
TOOL = {"name": "search", "description": "finds", "parameters": {"type": "object", "properties": {}}, "options": {}}


def result(content, **fields):
    return {"role": "tool", "content": content, "function": "search", "tool_call_id": "call00000", **fields}


def test_a_conversation_becomes_a_request():
    called = {"role": "assistant", "content": [{"type": "text", "text": "let me see"}], "tool_calls": [CALL]}
    system = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Search."}]
    config = {"max_tokens": 9, "stop_seqs": ["\n"]}
    request = to_request([*system, USER, called, result("wet")], [TOOL], config)
    assert request.system == "Be brief.\n\nSearch."
    assert request.messages == (
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [function_call("search", {"city": "Oslo"}, "call00000")],
        },
        {"role": "tool", "content": "wet", "name": "search", "tool_call_id": "call00000"},
    )
    assert (request.max_tokens, request.stop, request.draw) == (9, ("\n",), 0)
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    assert request.tools == ({"type": "function", "function": function},)


def test_the_model_reads_why_a_tool_failed():
    failed = result("", error={"type": "timeout", "message": "took too long"})
    request = to_request([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, failed], [], {})
    assert request.messages[-1]["content"] == "took too long"
    assert request.max_tokens == 0


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([USER, {"role": "system", "content": "x"}], "message 2 is a system message after a turn"),
        ([{"role": "user", "content": [{"type": "image", "image": "x"}]}], "message 1 contains image"),
        ([USER, {"role": "assistant", "content": "I"}], "ends with an assistant message"),
        ([{"role": "system", "content": "x"}], "add a user message"),
    ],
)
def test_what_a_model_of_the_lab_does_not_take_is_refused(messages, says):
    with pytest.raises(ConfigError, match=says):
        to_request(messages, [], {})


def test_settings_are_followed_refused_or_reported_and_never_dropped():
    sampling = {"max_tokens": 4, "temperature": 0.5, "stop_seqs": ["x"], "seed": 1}
    assert check_settings({**sampling, "timeout": 3, "top_p": 1.0, "num_choices": 1, "logprobs": False}) == []
    assert check_settings({"cache_prompt": "auto", "reasoning_effort": "low"}) == ["cache_prompt", "reasoning_effort"]
    with pytest.raises(ConfigError, match=r"top_p=0.9: .* leave it out\nresponse_schema=") as error:
        check_settings({"top_p": 0.9, "response_schema": {}})
    assert len(error.value.problems) == 2
    with pytest.raises(ConfigError, match="a_new_one"):
        check_settings({"a_new_one": 1})  # of a later inspect


def test_a_call_cannot_be_demanded():
    check_tool_choice("auto")
    for choice in ("any", {"name": "search"}):
        with pytest.raises(ConfigError, match="use 'auto'"):
            check_tool_choice(choice)


def test_a_reply_becomes_an_output():
    calls = (function_call("search", {"city": "Oslo"}, "call00000"), function_call("f", {MALFORMED: "{x"}, "call00001"))
    response = Completion("so", usage=Usage(input_tokens=7, output_tokens=3), tool_calls=calls, latency_s=0.5)
    output = from_response(response, "FOLDER")
    message = output["choices"][0]["message"]
    assert message["tool_calls"][0] == CALL
    assert message["tool_calls"][1]["parse_error"] == "the arguments of f are no JSON object: {x"
    assert output["choices"][0]["stop_reason"] == "tool_calls"
    assert output["usage"] == {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    # what the model wrote comes back to it as it was
    again = to_request([USER, message, result("?"), result("!", tool_call_id="call00001")], [], {})
    assert again.messages[1] == response.message


def test_the_end_of_a_reply_keeps_its_reason():
    for stop, reason in {"end": "stop", "truncated": "max_tokens", "refused": "content_filter"}.items():
        (choice,) = from_response(Completion("x", stop), "FOLDER")["choices"]
        assert (choice["stop_reason"], choice["message"]["tool_calls"]) == (reason, None)
