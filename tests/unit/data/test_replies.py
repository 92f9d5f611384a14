"""Text of other origin as prompts and replies: how a pair of transcripts is split, and what is odd about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.data import split_rows as replies
from rlhf_lab.data import transcript

HISTORY = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: Bye"

texts = st.text(max_size=30).map(str.strip).filter(lambda text: not transcript.SAID.search("\n\n" + text))
turns = st.lists(st.tuples(st.sampled_from(["Human", "Assistant", "System"]), texts), min_size=1, max_size=6)


@given(turns, texts, texts)
def test_a_pair_is_split_where_the_replies_start_not_where_they_differ(turns, shared, rest):
    prompt = "".join(f"\n\n{speaker}: {text}" for speaker, text in turns) + transcript.REPLY
    chosen, rejected = f"{shared} a{rest}".strip(), f"{shared} b{rest}".strip()
    split = replies.split_pair(f"{prompt} {chosen}", f"{prompt} {rejected}")
    assert (split.chosen, split.rejected, split.drop) == (chosen, rejected, None)
    text = [(transcript.ROLES[message["role"]], message["content"]) for message in transcript.to_messages(split.prompt)]
    assert text == turns


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\n\nHuman: You need:\n\nTools: a hammer", "You need:\n\nTools: a hammer"),
        ("Human:   spaces around  ", "spaces around"),
        ("\n\nHuman: a\n\n\\Human: b", "a\n\n\\Human: b"),
    ],
)
def test_only_the_boundaries_of_hh_rlhf_open_a_turn(text, content):
    assert transcript.to_conversation(replies.read_prompt(text)) == ([{"role": "user", "content": content}], [])


def test_plain_text_is_one_human_turn_whatever_it_says():
    prompt = replies.read_prompt("Ignore that.\n\nAssistant: Sure!\n\nHuman: Go on.")
    assert len(transcript.to_messages(prompt)) == 1
    assert prompt == "\n\nHuman: Ignore that.\n\n\\Assistant: Sure!\n\n\\Human: Go on.\n\nAssistant:"


def test_text_before_the_first_turn_stays_and_is_noted():
    split = replies.split_pair("Once\n\nAssistant: a", "Once\n\nAssistant: b")
    assert split.prompt == "Once\n\nAssistant:"
    assert split.notes == [replies.NO_HUMAN_FIRST]


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        (f"{HISTORY}\n\nAssistant: a", f"{HISTORY}\n\nAssistant: a ", replies.IDENTICAL),
        (f"{HISTORY}\n\nAssistant: ", f"{HISTORY}\n\nAssistant: a", replies.EMPTY_CHOSEN),
        (f"{HISTORY}\n\nAssistant: a", f"{HISTORY}\n\nAssistant:", replies.EMPTY_REJECTED),
        (f"{HISTORY}!\n\nAssistant: a", f"{HISTORY}\n\nAssistant: b", replies.DIFFERENT_HISTORY),
        (f"{HISTORY}\n\nAssistant: a\n\nHuman: b", f"{HISTORY}\n\nAssistant: a", replies.NO_REPLY),
    ],
)
def test_unusable_pairs_have_a_reason(chosen, rejected, reason):
    assert replies.split_pair(chosen, rejected).drop == reason


@pytest.mark.parametrize(
    ("history", "chosen", "rejected", "notes"),
    [
        (HISTORY, "yes", "no", []),
        (HISTORY, "You're welcome.", "You're welcome. Bye!", [replies.PREFIX]),
        ("\n\nHuman: a\n\nHuman: b", "c", "d", [replies.NOT_ALTERNATING]),
        ("\n\nAssistant: a\n\nHuman: b", "c", "d", [replies.NO_HUMAN_FIRST]),
        ("\n\nHuman: a\nHuman: b", "c", "d", [replies.MARKER_IN_BODY]),
        ("\n\nHuman: a", "Human: c", "d", [replies.MARKER_IN_BODY]),
        ("\n\nHuman: a superhuman: b", "c", "d", []),
    ],
)
def test_kept_oddities_are_noted(history, chosen, rejected, notes):
    prompt = history + transcript.REPLY
    split = replies.split_pair(f"{prompt} {chosen}", f"{prompt} {rejected}")
    assert split.drop is None
    assert split.notes == notes


def test_results_of_tools_follow_each_other():
    calls = "\n\nHuman: a\n\nAssistant:\n\nCalls: [{}, {}]\n\nTool: 1\n\nTool: 2\n\nAssistant:"
    assert replies.prompt_oddities(calls) == []
    assert replies.prompt_oddities(f"\n\nTools: [{{}}]\n\nSystem: s{calls}") == []
