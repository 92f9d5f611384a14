"""Every dataset type: detected, converted both ways, and nothing lost where nothing needs to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data import transcript
from rlhf_lab.data.formats import convert, detect, from_pair, to_conversational, to_pairs, to_standard

PROMPT = "\n\nHuman: Hi\n\nAssistant:"
STANDARD = {
    "language_modeling": {"text": f"{PROMPT} Hello"},
    "prompt_only": {"prompt": PROMPT},
    "prompt_completion": {"prompt": PROMPT, "completion": " Hello"},
    "preference": {"prompt": PROMPT, "chosen": " Hello", "rejected": " What?"},
    "implicit_preference": {"chosen": f"{PROMPT} Hello", "rejected": f"{PROMPT} What?"},
    "unpaired_preference": {"prompt": PROMPT, "completion": " Hello", "label": True},
    "stepwise_supervision": {"prompt": PROMPT, "completions": [" Hel", "lo"], "labels": [True, False]},
}
USER, HELLO, WHAT = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "assistant", "content": "What?"},
)
CONVERSATIONAL = {
    "language_modeling": {"messages": [USER, HELLO]},
    "prompt_only": {"prompt": [USER]},
    "prompt_completion": {"prompt": [USER], "completion": [HELLO]},
    "preference": {"prompt": [USER], "chosen": [HELLO], "rejected": [WHAT]},
    "implicit_preference": {"chosen": [USER, HELLO], "rejected": [USER, WHAT]},
    "unpaired_preference": {"prompt": [USER], "completion": [HELLO], "label": True},
}
WHOLE_PAIR = ("preference", "implicit_preference", "unpaired_preference")

pieces = st.sampled_from(["\n\nHuman:", "\n\n\\Assistant:", "\n\nTools:", "    return x", "\n"])
contents = st.lists(pieces | st.text(max_size=6), max_size=4).map("".join)
responses = contents.map(str.rstrip)
turns = st.tuples(st.sampled_from(["user", "assistant", "system"]), contents.filter(bool))
histories = st.lists(turns, min_size=1, max_size=4).map(
    lambda pairs: [{"role": role, "content": content} for role, content in pairs]
)
tool_lists = st.lists(st.fixed_dictionaries({"name": st.text(max_size=5)}), max_size=2)
pairs = st.builds(Pair, st.builds(transcript.render_prompt, histories, tool_lists), responses, responses)


@pytest.mark.parametrize("name", STANDARD)
def test_types_are_detected(name):
    assert detect({**STANDARD[name], "score": 3}) == (name, False)
    if name in CONVERSATIONAL:
        assert detect({**CONVERSATIONAL[name], "score": 3}) == (name, True)


@pytest.mark.parametrize("name", CONVERSATIONAL)
def test_standard_and_conversational_rows_say_the_same(name):
    assert to_conversational({**STANDARD[name], "score": 3}) == {**CONVERSATIONAL[name], "score": 3}
    assert to_standard({**CONVERSATIONAL[name], "score": 3}) == {**STANDARD[name], "score": 3}
    assert to_standard(STANDARD[name]) == STANDARD[name]
    assert to_conversational(CONVERSATIONAL[name]) == CONVERSATIONAL[name]


@given(st.lists(pairs, max_size=4), st.sampled_from(WHOLE_PAIR), st.booleans())
def test_pairs_survive_every_type_that_holds_both_replies(examples, name, conversational):
    rows = [row for pair in examples for row in from_pair(pair, name, conversational=conversational)]
    assert all(detect(row) == (name, conversational) for row in rows)
    assert list(to_pairs(rows)) == examples


@given(pairs, st.sampled_from(WHOLE_PAIR), st.sampled_from(WHOLE_PAIR), st.booleans(), st.booleans())
def test_preference_types_convert_into_each_other(pair, first, second, messages_in, messages_out):
    rows = from_pair(pair, first, conversational=messages_in)
    converted = list(convert(rows, second, conversational=messages_out))
    assert converted == from_pair(pair, second, conversational=messages_out)


@given(histories)
def test_conversations_survive_language_modeling(turns):
    assert to_conversational(to_standard({"messages": turns})) == {"messages": turns}


CALL = [{"type": "function", "id": "1", "function": {"name": "now", "arguments": {}}}]
WITH_TOOLS = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": CALL},
    {"role": "tool", "content": "nine", "name": "now", "tool_call_id": "1"},
]
TOOLS = [{"type": "function", "function": {"name": "now", "description": "What time it is."}}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [*WITH_TOOLS, HELLO]},
        {"prompt": WITH_TOOLS},
        {"prompt": [USER], "completion": [*WITH_TOOLS[1:], HELLO]},
        {"prompt": WITH_TOOLS, "chosen": [HELLO], "rejected": [WHAT]},
        {"chosen": [*WITH_TOOLS, HELLO], "rejected": [*WITH_TOOLS, WHAT]},
        {"prompt": [USER], "completion": WITH_TOOLS[1:2], "label": True},
    ],
)
def test_tools_survive_every_type(row):
    with_tools = {**row, "tools": TOOLS, "source": "mine"}
    standard = to_standard(with_tools)
    assert "tools" not in standard and standard["source"] == "mine"
    assert to_conversational(standard) == with_tools
    name = detect(row).name
    assert list(convert([with_tools], name, conversational=True)) == [with_tools]


def test_other_columns_are_carried():
    rows = [
        {"prompt": "p", "completion": "good", "label": True, "id": 7, "score": 0.9},
        {"prompt": "p", "completion": "bad", "label": False, "id": 7, "score": 0.1},
    ]
    paired = {"prompt": "p", "chosen": "good", "rejected": "bad", "id": 7}
    assert list(convert(rows, "preference")) == [paired]  # each score belongs to one reply alone
    assert [row["id"] for row in convert([paired], "unpaired_preference")] == [7, 7]
    assert list(convert([paired], "prompt_only")) == [{"prompt": "p", "id": 7}]


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_text_that_is_no_transcript_is_left_as_it_is(prompt, chosen, rejected):
    row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    assert list(convert([row], "preference")) == [row]
    assert list(convert(convert([row], "unpaired_preference"), "preference")) == [row]


@pytest.mark.parametrize(
    ("source", "target", "rows"),
    [
        ("preference", "prompt_only", [{"prompt": PROMPT}]),
        ("preference", "prompt_completion", [{"prompt": PROMPT, "completion": " Hello"}]),
        ("preference", "language_modeling", [{"text": f"{PROMPT} Hello"}]),
        ("unpaired_preference", "prompt_completion", [{"prompt": PROMPT, "completion": " Hello"}]),
        ("language_modeling", "prompt_only", [{"prompt": PROMPT}]),
        ("stepwise_supervision", "prompt_completion", [{"prompt": PROMPT, "completion": " Hello"}]),
        ("stepwise_supervision", "unpaired_preference", [{"prompt": PROMPT, "completion": " Hello", "label": False}]),
    ],
)
def test_conversions_that_leave_something_out(source, target, rows):
    row = STANDARD[source]
    if (source, target) == ("stepwise_supervision", "prompt_completion"):
        row = {**row, "labels": [True, True]}
    assert list(convert([row], target)) == rows


def test_unpaired_rows_are_joined_in_either_order_and_never_across_prompts():
    def row(prompt, completion, label):
        return {"prompt": prompt, "completion": completion, "label": label}

    rows = [row("p", "bad", False), row("p", "good", True), row("q", "good", True), row("q", "bad", False)]
    assert [row["prompt"] for row in convert(rows, "preference")] == ["p", "q"]
    with pytest.raises(DataError, match=r"but the labels are \[False\]"):
        list(convert([rows[0], rows[2]], "preference"))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("prompt_only", "preference", r"but the labels are \[\]"),
        ("prompt_completion", "unpaired_preference", "needs a label for each completion"),
        ("preference", "stepwise_supervision", "needs labelled steps"),
        ("preference", "sft", "'sft' is not a dataset type; use one of language_modeling"),
    ],
)
def test_what_a_row_lacks_is_named(source, target, expected):
    with pytest.raises(DataError, match=expected):
        list(convert([STANDARD[source]], target))


def test_a_disliked_completion_is_never_imitated():
    row = {"prompt": PROMPT, "completion": " What?", "label": False}
    with pytest.raises(DataError, match="no completion that is liked"):
        list(convert([row], "prompt_completion"))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"question": "a"}, "'question' is of no known type; the types are stepwise_supervision"),
        ({"prompt": "a", "chosen": [HELLO], "rejected": [WHAT]}, "prompt: text, chosen: messages"),
        ({"text": None}, "'text' is of no known type"),
    ],
)
def test_rows_of_no_type(row, expected):
    with pytest.raises(DataError, match=expected):
        detect(row)


def test_a_column_that_is_null_is_not_there():
    """A table of rows of several types fills the columns of the others with null."""
    row = {"prompt": "a", "completion": "b", "chosen": None, "rejected": None, "label": None}
    assert detect(row).name == "prompt_completion"
    [written] = convert([row], "prompt_completion", conversational=True)
    assert [message["content"] for name in ("prompt", "completion") for message in written[name]] == ["a", "b"]
    with pytest.raises(DataError, match=r"but the labels are \[None\]"):
        list(convert([row], "preference"))


def test_every_step_has_a_label():
    with pytest.raises(DataError, match="has 2 completions but 1 labels"):
        list(convert([{"prompt": "a", "completions": ["b", "c"], "labels": [True]}], "prompt_only"))


def test_an_unknown_prompt_is_an_error_not_an_empty_prompt():
    rows = [{"chosen": "The sky is blue.", "rejected": "The sky is green."}]
    assert list(convert(rows, "language_modeling")) == [{"text": "The sky is blue."}]
    assert list(convert(rows, "implicit_preference")) == rows
    with pytest.raises(DataError, match="the prompt of the row is unknown"):
        list(to_pairs(rows))


def test_stepwise_rows_stay_standard():
    with pytest.raises(DataError, match="no conversational form"):
        to_conversational(STANDARD["stepwise_supervision"])
    assert list(convert([STANDARD["stepwise_supervision"]], "prompt_only", conversational=True)) == [{"prompt": [USER]}]


def test_labels_of_a_csv_keep_their_meaning():
    """bool("False") is True, so a disliked completion was imitated."""
    liked, disliked = (
        {"prompt": "q", "completion": text, "label": label} for text, label in (("a", "True"), ("b", "0"))
    )
    assert list(convert([liked, disliked], "preference")) == [{"prompt": "q", "chosen": "a", "rejected": "b"}]
    with pytest.raises(DataError, match="a label is 'good'; expected true or false"):
        list(convert([{**liked, "label": "good"}], "prompt_completion"))
