"""Messages and tools as columns hold them: one form out, and errors that name column, message and field."""

from __future__ import annotations

import json
from functools import partial

import pytest

from rlhf_lab.data import prompts
from rlhf_lab.data.file_settings import PromptsData
from rlhf_lab.data.messages import completion_text, messages_column, read_tools, text_or_messages
from rlhf_lab.data.rows import RowProblem

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}


def test_nulls_of_a_table_are_left_out_and_parts_of_text_are_joined():
    row = {
        "m": [
            {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "name": None},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "name": "add", "tool_call_id": None},
        ]
    }
    assert messages_column(row, "m") == [
        {"role": "user", "content": "a b"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "name": "add"},
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"city": "Oslo", "unit": null}', {"city": "Oslo", "unit": None}),
        ("", {}),
        ('{"city": "Oslo"', '{"city": "Oslo"'),
        ("[1]", "[1]"),
    ],
)
def test_arguments_that_are_json_text_become_an_object(written, read):
    """The OpenAI format has text, which a chat template would show as a quoted string."""
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": written}}
    (message,) = messages_column({"m": [{"role": "assistant", "content": None, "tool_calls": [call]}]}, "m")
    assert message["tool_calls"] == [{**call, "function": {"name": "search", "arguments": read}}]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hi", r"column 'm', message 1 is .*; expected an object \{role, content\}"),
        ({"role": "bot", "content": "hi"}, r"message 1: role is .*'bot'.*; expected one of user, assistant"),
        ({"role": "user", "content": 3}, r"message 1: content is .*3.*; expected text"),
        ({"role": "user", "content": [{"type": "image"}]}, r"message 1: content has parts that are not text"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, r"a user message has tool_calls, but only"),
        ({"role": "tool", "content": "x", "name": 3}, r"message 1: name is .*3.*; expected text"),
    ],
)
def test_a_wrong_message_is_named(message, problem):
    with pytest.raises(RowProblem, match=problem):
        messages_column({"m": [message]}, "m")


def test_tools_may_be_text():
    assert read_tools({"tools": '[{"type": "function"}]'}, "tools") == [{"type": "function"}]
    assert read_tools({"tools": None}, "tools") == [] == read_tools({}, "tools")
    with pytest.raises(RowProblem, match=r"column 'tools' is .*; expected a JSON list of tools"):
        read_tools({"tools": "no json"}, "tools")


@pytest.mark.parametrize("name", ['a"b', "a>b", "[x]", "a\nb", " "])
def test_a_name_of_a_tool_that_ends_its_call_is_refused(name):
    for tool in ({"type": "function", "function": {"name": name}}, {"name": name}):
        with pytest.raises(RowProblem, match=r"column 'tools': the tool's name .* rename it"):
            read_tools({"tools": [tool]}, "tools")


@pytest.mark.parametrize(
    "write", [json.dumps, partial(json.dumps, indent=1), repr, lambda messages: f" {messages!r}\n"]
)
def test_text_that_encodes_messages_is_read_as_messages(write):
    """A table often holds the JSON of a conversation; it was trained on as it is written."""
    messages = [{"role": "user", "content": "Why [{role}]?"}]
    row = {"prompt": write(messages), "answer": "x"}
    assert text_or_messages(row, "prompt") == messages == messages_column(row, "prompt")
    assert prompts.parse_row(row, PromptsData(path="x")).prompt == "\n\nHuman: Why [{role}]?\n\nAssistant:"


@pytest.mark.parametrize(
    "text",
    [
        *('[{"role": "king"}]', '[{"role"', "Which role? [{a}]", '{"role": "user", "content": ""}'),
        *("[{x: 1} {role: 2}]", '[{"role": name}, {"role": other}'),
    ],
)
def test_other_text_with_brackets_stays_text(text):
    assert text_or_messages({"prompt": text}, "prompt") == text


def test_one_space_joins_a_completion_and_indentation_stays():
    assert completion_text(" blue. ") == "blue."
    assert completion_text("    return x") == "   return x", "TRL's joint is one space"
    assert text_or_messages({"c": "  x"}, "c") == "  x"
