"""Transcripts ↔ messages, and how a pair of transcripts becomes a prompt and two replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.core.errors import DataError
from rlhf_lab.data import transcript

HISTORY = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye"

contents = st.text(max_size=30).map(str.strip).filter(lambda text: not transcript.TURN.search("\n\n" + text))
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": contents}), max_size=6
)


@given(messages)
def test_messages_survive_the_way_through_a_transcript(turns):
    assert transcript.parse(transcript.render(turns)) == turns
    assert transcript.to_messages(transcript.render_prompt(turns)) == turns


@given(messages.filter(bool), contents, contents)
def test_a_pair_is_split_where_the_replies_start_not_where_they_differ(turns, shared, rest):
    prompt = transcript.render_prompt(turns)
    chosen, rejected = f"{shared} a{rest}".strip(), f"{shared} b{rest}".strip()
    split = transcript.split_pair(f"{prompt} {chosen}", f"{prompt} {rejected}")
    assert (split.prompt, split.chosen, split.rejected, split.drop) == (prompt, chosen, rejected, None)


def test_messages_render_as_turns_with_the_system_message_kept():
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Well?"},
    ]
    assert transcript.render(turns) == "\n\nSystem: Be brief.\n\nHuman: Hi\n\nAssistant:\n\nHuman: Well?"


def test_a_transcript_may_have_lost_its_first_newlines():
    assert transcript.parse("Human: Hi\n\nAssistant: Yo") == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
    ]


def test_text_before_the_first_turn_is_an_error_that_shows_it():
    with pytest.raises(DataError, match=r"found 'Once upon a time"):
        transcript.parse("Once upon a time\n\nHuman: Hi")


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
    ("chosen", "rejected", "reason"),
    [
        (f"{HISTORY}\n\nAssistant: a", f"{HISTORY}\n\nAssistant: a ", transcript.IDENTICAL),
        (f"{HISTORY}\n\nAssistant: ", f"{HISTORY}\n\nAssistant: a", transcript.EMPTY_CHOSEN),
        (f"{HISTORY}\n\nAssistant: a", f"{HISTORY}\n\nAssistant:", transcript.EMPTY_REJECTED),
        (f"{HISTORY}!\n\nAssistant: a", f"{HISTORY}\n\nAssistant: b", transcript.DIFFERENT_HISTORY),
        (f"{HISTORY}\n\nAssistant: a\n\nHuman: b", f"{HISTORY}\n\nAssistant: a", transcript.NO_REPLY),
        ("no turns", "at all", transcript.NO_REPLY),
    ],
)
def test_unusable_pairs_have_a_reason(chosen, rejected, reason):
    assert transcript.split_pair(chosen, rejected).drop == reason


@pytest.mark.parametrize(
    ("history", "chosen", "rejected", "notes"),
    [
        (HISTORY, "yes", "no", []),
        (HISTORY, "You're welcome.", "You're welcome. Bye!", [transcript.PREFIX]),
        ("\n\nHuman: a\n\nHuman: b", "c", "d", [transcript.NOT_ALTERNATING]),
        ("\n\nHuman: a\n\nAssistant: two assistant turns", "c", "d", [transcript.NOT_ALTERNATING]),
        ("\n\nSystem: s\n\nHuman: a", "c", "d", []),
        ("\n\nAssistant: a\n\nHuman: b", "c", "d", [transcript.NO_HUMAN_FIRST]),
        ("\n\nHuman: a\nHuman: b", "c", "d", [transcript.MARKER_IN_BODY]),
        ("\n\nHuman: a", "Human: c", "d", [transcript.MARKER_IN_BODY]),
        ("\n\nHuman: a superhuman: b", "c", "d", []),
    ],
)
def test_kept_oddities_are_noted(history, chosen, rejected, notes):
    prompt = history + transcript.REPLY
    split = transcript.split_pair(f"{prompt} {chosen}", f"{prompt} {rejected}")
    assert split.drop is None
    assert split.notes == notes


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
