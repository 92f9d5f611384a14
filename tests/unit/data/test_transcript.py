r"""Messages ↔ transcripts: nothing is lost, and nobody can open a turn by typing its boundary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.core.errors import DataError
from rlhf_lab.data import transcript
from rlhf_lab.data.transcript import Conversation

HISTORY = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye"
CALL = {"type": "function", "id": "1", "function": {"name": "search", "arguments": {"text": "\n\nHuman: tram"}}}

# Contents made of what could be mistaken: boundaries, quotes of boundaries, spaces, headers.
pieces = st.sampled_from(
    [
        *(f"\n\n{word}:" for word in transcript.WORDS.split("|")),
        *("\n\n\\Human:", "\n\n\\\\Tool:", "\n", "\\", " ", "    x"),
        *('{"name": "a"}', "{}", "[]", "Human:", "\r\n"),
    ]
)
contents = st.lists(pieces | st.text(max_size=5), max_size=6).map("".join)
json_values = st.dictionaries(st.text(max_size=4), st.none() | st.integers() | contents, max_size=3)
said = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": contents})
calling = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": contents, "tool_calls": st.lists(json_values, min_size=1, max_size=2)}
)
results = st.fixed_dictionaries(
    {"role": st.just("tool"), "content": contents}, optional={"name": contents, "tool_call_id": contents}
)
messages = st.lists(said | calling | results, max_size=5)
tools = st.lists(json_values, max_size=2)


@given(messages, tools)
def test_messages_and_tools_survive_the_way_through_a_transcript(turns, tools):
    assert transcript.parse(transcript.render(turns, tools)) == Conversation(turns, tools)


@given(messages.filter(bool), tools)
def test_a_prompt_says_what_its_messages_say(turns, tools):
    assert transcript.to_conversation(transcript.render_prompt(turns, tools)) == Conversation(turns, tools)


@given(contents)
def test_no_content_adds_a_turn(content):
    prompt = transcript.render_prompt([{"role": "user", "content": content}])
    assert [turn[1] for turn in transcript.TURN.finditer(prompt)] == ["Human", "Assistant"]


@given(contents, st.lists(json_values, max_size=2))
def test_a_reply_is_its_content_and_its_calls(content, calls):
    message = {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})
    response = transcript.response_text(message)
    if calls:
        assert transcript.response_message(response) == message
    if transcript.CALLS not in response:
        assert transcript.response_message(response) == message


def test_text_that_looks_like_calls_is_text():
    response = "Two:\n\nCalls: to Ann, to Bob"
    assert transcript.response_message(response) == {"role": "assistant", "content": response}


def test_a_conversation_with_tools_reads_like_this():
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "When does the tram go?"},
        {"role": "assistant", "content": "I look it up.", "tool_calls": [CALL]},
        {"role": "tool", "content": "at nine", "name": "search", "tool_call_id": "1"},
        {"role": "assistant", "content": "At nine."},
    ]
    text = transcript.render(turns, [{"name": "search"}])
    assert text == (
        '\n\nTools: [{"name": "search"}]\n\nSystem: Be brief.\n\nHuman: When does the tram go?'
        '\n\nAssistant: I look it up.\n\nCalls: [{"type": "function", "id": "1", "function": '
        '{"name": "search", "arguments": {"text": "\\n\\nHuman: tram"}}}]'
        '\n\nTool: {"name": "search", "tool_call_id": "1"}\nat nine\n\nAssistant: At nine.'
    )
    assert transcript.parse(text) == Conversation(turns, [{"name": "search"}])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n\nTools: a hammer", r"must be the first turn and contain a JSON list, but it contains 'a ham"),
        ("\n\nHuman: a\n\nTools: []", "must be the first turn"),
        ("\n\nHuman: a\n\nCalls: []", "must follow an Assistant turn"),
        ("\n\nAssistant: a\n\nCalls: none", r"if it is text, write .*Calls:\" with a backslash"),
    ],
)
def test_turns_of_tools_that_are_out_of_place(text, problem):
    with pytest.raises(DataError, match=problem):
        transcript.parse(text)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("What is 2+2?", "\n\nHuman: What is 2+2?\n\nAssistant:"),
        ("\n\nHuman: Hi", "\n\nHuman: Hi\n\nAssistant:"),
        ("Human: Hi\n\nAssistant: ", "\n\nHuman: Hi\n\nAssistant:"),
    ],
)
def test_prompts_end_where_the_reply_starts(text, prompt):
    assert transcript.as_prompt(text) == prompt


@pytest.mark.parametrize(
    ("prompt", "last", "turns"),
    [
        ("\n\nHuman: a\n\nAssistant:", "\n\nHuman: a\n\nAssistant:", 1),
        (f"{HISTORY}\n\nAssistant:", "\n\nHuman: Bye\n\nAssistant:", 2),
        ("\n\nSystem: s\n\nHuman: a\n\nHuman: b\n\nAssistant:", "\n\nHuman: b\n\nAssistant:", 2),
        ("\n\nHuman: a\n\nAssistant: b\n\nAssistant:", "\n\nHuman: a\n\nAssistant: b\n\nAssistant:", 1),
        ("\n\nSystem: s\n\nAssistant:", "\n\nSystem: s\n\nAssistant:", 0),
    ],
)
def test_a_prompt_can_be_cut_to_its_last_human_turn(prompt, last, turns):
    assert transcript.CONTEXTS["last_turn"](prompt) == last
    assert transcript.CONTEXTS["conversation"](prompt) == prompt
    assert transcript.human_turns(prompt) == turns
