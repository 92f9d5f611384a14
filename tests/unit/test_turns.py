"""Conversations as one row: each turn of the assistant is learned, and nothing that others say."""

from __future__ import annotations

import pytest
from support import gpt2_tokenizer
from test_chat import FAMILIES, TOOLS_TEMPLATE, tokenizer_of

from rlhf_lab.data.transcript import render_prompt, response_text, to_conversation
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.turns import conversation_row

TALK = [
    {"role": "user", "content": "hello you"},
    {"role": "assistant", "content": "    def f(x):"},
    {"role": "user", "content": "write a function"},
]
ANSWER = "return x + 1"


def learned_spans(encoder, row, mask):
    """The text of each learned stretch."""
    spans, current = [], []
    for token, learned in zip(row[1], [*mask], strict=True):
        if learned:
            current.append(token)
        elif current:
            spans.append(current)
            current = []
    return [encoder.tokenizer.decode(span) for span in [*spans, current] if span]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_turn_of_the_assistant_is_learned_with_its_end(name):
    family = FAMILIES[name]
    encoder = Encoder(tokenizer_of(family), to_conversation)
    prompt = render_prompt(TALK)
    row, mask = conversation_row(encoder, prompt, ANSWER, 400, learn_from=0)
    spans = [span.removeprefix(" ") if name == "mistral" else span for span in learned_spans(encoder, row, mask)]
    assert spans == [f"    def f(x):{family.end}", f"{ANSWER}{family.end}"]
    assert row[0] == encoder.prompt(render_prompt(TALK[:1]))
    # Apart from indentation, which some templates strip, the row is what the template writes.
    messages = [*TALK, {"role": "assistant", "content": ANSWER}]
    written = encoder.tokenizer.apply_chat_template(messages, tokenize=False)
    end = written.rindex(family.end) + len(family.end)
    assert "".join(encoder.tokenizer.decode([*row[0], *row[1]]).split()) == "".join(written[:end].split())


def test_only_the_completion_of_a_row_may_be_learned_and_a_long_row_is_cut_with_its_mask():
    encoder = Encoder(tokenizer_of(FAMILIES["chatml"]), to_conversation)
    for learn_from in (None, 2):
        row, mask = conversation_row(encoder, render_prompt(TALK), ANSWER, 400, learn_from)
        assert row == encoder.row(render_prompt(TALK), ANSWER, 400)
        assert all(mask)
    full, mask = conversation_row(encoder, render_prompt(TALK), ANSWER, 400, learn_from=0)
    cut, cut_mask = conversation_row(encoder, render_prompt(TALK), ANSWER, len(full[0]) + 9, learn_from=0)
    assert cut == (full[0], full[1][:9]) and cut_mask == mask[:9]


def test_a_plain_transcript_ends_each_learned_turn_with_eos():
    encoder = Encoder(gpt2_tokenizer(["hello you write a function return x"]))
    row, mask = conversation_row(encoder, render_prompt(TALK), ANSWER, 400, learn_from=0)
    eos = encoder.tokenizer.eos_token
    assert learned_spans(encoder, row, mask) == [f"     def f(x):{eos}", f" {ANSWER}{eos}"]
    full = encoder.tokenizer.decode([*row[0], *row[1]])
    assert (
        full == f"{render_prompt(TALK[:1])}     def f(x):{eos}\n\nHuman: write a function\n\nAssistant: {ANSWER}{eos}"
    )


@pytest.mark.parametrize("name", ["chatml", "llama3", None])
def test_an_empty_turn_is_read_and_not_learned(name):
    if name:
        encoder = Encoder(tokenizer_of(FAMILIES[name]), to_conversation)
        end = FAMILIES[name].end
    else:
        encoder = Encoder(gpt2_tokenizer(["hello you write a function return x"]))
        end = encoder.tokenizer.eos_token
    messages = [TALK[0], {"role": "assistant", "content": " "}, *TALK]
    row, mask = conversation_row(encoder, render_prompt(messages), ANSWER, 400, learn_from=0)
    spans = [span.removeprefix(" ") if name is None else span for span in learned_spans(encoder, row, mask)]
    assert spans == [f"    def f(x):{end}", f"{ANSWER}{end}"]


def test_calls_of_tools_are_learned_and_their_results_are_not():
    tokenizer = tokenizer_of(FAMILIES["chatml"])
    tokenizer.chat_template = TOOLS_TEMPLATE
    encoder = Encoder(tokenizer, to_conversation)
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    messages = [
        TALK[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "<|im_end|> nine", "name": "now"},
    ]
    row, mask = conversation_row(encoder, render_prompt(messages, [{"name": "now"}]), "at nine", 400, learn_from=0)
    assert learned_spans(encoder, row, mask) == ["<call>now</call><|im_end|>", "at nine<|im_end|>"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert row[1].count(end) == 3, "what a tool writes ends no turn"
    response = response_text({"role": "assistant", "content": "hello", "tool_calls": [call]})
    assert tokenizer.decode(encoder.response(response)) == "hello<call>now</call><|im_end|>"
