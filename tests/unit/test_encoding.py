"""Text to token rows: spaces, BOS, EOS, truncation, for tokenizers of the families users bring."""

from __future__ import annotations

import pytest
import torch
from support import gpt2_tokenizer, llama_tokenizer, prompt_text
from tokenizers.processors import TemplateProcessing

from rlhf_lab.core.types import Pair
from rlhf_lab.data.transcript import render_prompt, to_conversation
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.pair_rows import pair_rows
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.models.turns import conversation_row

PROMPT = prompt_text("When does the museum open?")
REPLY = "It opens at nine, every day."
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
MAKERS = {"trained": lambda texts: train_tokenizer(texts, 4096), "gpt2": gpt2_tokenizer, "llama": llama_tokenizer}


@pytest.fixture(params=sorted(MAKERS))
def encoder(request):
    return Encoder(MAKERS[request.param]([PROMPT, f" {REPLY}"]))


def test_a_reply_ends_with_eos_and_starts_with_its_space(encoder):
    ids = encoder.response(REPLY)
    assert ids[-1] == encoder.eos_id
    assert encoder.eos_id not in ids[:-1]
    assert encoder.tokenizer.decode(ids[:-1]) == f" {REPLY}"
    assert encoder.text(ids) == REPLY


def test_prompt_and_reply_are_the_transcript(encoder):
    prompt, response = encoder.row(PROMPT, REPLY, 200)
    start = 1 if prompt[0] == encoder.tokenizer.bos_token_id else 0
    assert encoder.tokenizer.decode(prompt[start:] + response[:-1]) == f"{PROMPT} {REPLY}"
    assert encoder.counts == {"rows": 1}


def test_bos_only_where_the_tokenizer_puts_one():
    texts = [PROMPT]
    llama, gpt2 = Encoder(llama_tokenizer(texts)), Encoder(gpt2_tokenizer(texts))
    assert llama.prompt(PROMPT)[0] == llama.tokenizer.bos_token_id
    assert llama.prompt(PROMPT).count(llama.tokenizer.bos_token_id) == 1
    assert llama.tokenizer.bos_token_id not in llama.response(REPLY)
    assert gpt2.tokenizer.bos_token_id not in gpt2.prompt(PROMPT)  # it is GPT-2's EOS


def test_no_pad_token_is_needed():
    encoder = Encoder(gpt2_tokenizer([PROMPT]))
    assert encoder.tokenizer.pad_token_id is None
    batch = TokenBatch.from_rows([encoder.row(PROMPT, REPLY, 200), encoder.row(PROMPT, "No.", 200)])
    row_N, column_N = batch.targets()
    lengths = [len(encoder.response(text)) for text in (REPLY, "No.")]
    assert torch.bincount(row_N).tolist() == lengths
    assert batch.tokens_BT[row_N, column_N][-1] == encoder.eos_id  # EOS is part of the response even where it pads


@pytest.mark.parametrize("limit", [8, 16, 32, 64])
@pytest.mark.parametrize("response", [REPLY, REPLY * 20, "", "No."])
def test_truncated_rows_are_counted_and_never_empty(encoder, limit, response):
    prompt, ids = encoder.row(PROMPT * 20, response, limit)
    assert len(prompt) + len(ids) <= limit
    assert len(ids) >= min(len(encoder.response(response)), limit // 4)
    assert prompt
    assert encoder.counts["prompts cut at the beginning"] == 1
    full = ids == encoder.response(response)
    assert full == (ids[-1] == encoder.eos_id)
    assert encoder.counts.get("replies cut at the end (no EOS)", 0) == (0 if full else 1)


def test_a_cut_prompt_keeps_its_end_and_its_bos():
    encoder = Encoder(llama_tokenizer([PROMPT]))
    full, cut = encoder.prompt(PROMPT), encoder.prompt(PROMPT, 6)
    assert cut == [full[0], *full[-5:]]


def test_chat_template_is_used_and_bos_is_not_doubled():
    tokenizer = llama_tokenizer([PROMPT])
    tokenizer.chat_template = TEMPLATE
    encoder = Encoder(tokenizer, to_conversation)
    ids = encoder.prompt(PROMPT)
    assert tokenizer.decode(ids) == "<s>user: When does the museum open?\nassistant: "
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(encoder.response(REPLY)[:-1]) == REPLY


ONE_BOS = TEMPLATE.replace("<s>", "").replace("{% for", "{{ bos_token }}{% for", 1)


@pytest.mark.parametrize("adds_bos", [True, False], ids=["and the tokenizer", "alone"])
def test_a_cut_prompt_keeps_the_bos_that_the_template_writes(adds_bos):
    tokenizer = llama_tokenizer([PROMPT])
    if not adds_bos:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.chat_template = ONE_BOS
    encoder = Encoder(tokenizer, to_conversation)
    full = encoder.prompt(PROMPT)
    assert tokenizer.decode(full) == "<s>user: When does the museum open?\nassistant: "
    assert encoder.prompt(PROMPT, 6) == [full[0], *full[-5:]]
    assert encoder.prompt(PROMPT, len(full)) == full
    response = encoder.response(REPLY)
    row = encoder.fit(PROMPT, response, 8 + len(response) // 2)
    assert len(row[0] + row[1]) == 8 + len(response) // 2
    assert row[0][0] == tokenizer.bos_token_id and row[0][1:] == full[1 - len(row[0]) :]
    assert encoder.counts["prompts cut at the beginning"] == 2


def test_a_cut_prompt_does_not_begin_with_the_mark_of_every_turn():
    """The BOS of some tokenizers is the token that starts a turn, and they do not add it to a text."""
    tokenizer = llama_tokenizer([PROMPT])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.chat_template = TEMPLATE.replace("assistant: ", "<s>assistant: ")
    encoder = Encoder(tokenizer, to_conversation)
    full = encoder.prompt(PROMPT)
    assert full.count(tokenizer.bos_token_id) == 2
    assert encoder.prompt(PROMPT, len(full) - 2) == full[2:]


def test_special_tokens_written_in_a_text_are_text(encoder):
    """A data row that says "<|endoftext|>" does not end the reply there."""
    name = encoder.tokenizer.eos_token
    ids = encoder.response(f"one {name} two")
    assert encoder.eos_id not in ids[:-1]
    assert encoder.text(ids) == f"one {name} two"


def test_a_tokenizer_without_eos_is_refused():
    tokenizer = gpt2_tokenizer([PROMPT])
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no EOS"):
        Encoder(tokenizer)


def test_targets_are_reply_tokens_only():
    rows = [([5, 6, 7], [8, 9]), ([5], [6, 7, 8]), ([], [4, 3])]
    row_N, column_N = TokenBatch.from_rows(rows).targets()
    # A row without a prompt has no context for its first token, which is therefore not predicted.
    assert list(zip(row_N.tolist(), column_N.tolist(), strict=True)) == [(0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (2, 1)]


def test_a_mask_leaves_only_the_learned_tokens_of_a_reply():
    """A conversation of several turns is one row; what the user and the tools say in it is read, not learned."""
    rows = [([5, 6, 7], [8, 9]), ([5], [6, 7, 8])]
    batch = TokenBatch.from_rows(rows, masks=[[True, False], [False, False, True]])
    row_N, column_N = batch.targets()
    assert list(zip(row_N.tolist(), column_N.tolist(), strict=True)) == [(0, 3), (1, 3)]
    assert batch.learned_BT is not None
    assert batch.learned_BT.tolist() == [[False, False, False, True, False]] * 2
    assert batch.length_B.tolist() == [5, 4]  # the tokens that are only read are in the row all the same
    assert TokenBatch.from_rows(rows).learned_BT is None
    with pytest.raises(ValueError, match="row 1: the mask has 2 values but the response has 3 tokens"):
        TokenBatch.from_rows([([5], [8]), ([5], [6, 7, 8])], masks=[[True], [True, True]])
    with pytest.raises(ValueError, match="shorter"):
        TokenBatch.from_rows([([5], [8]), ([5], [6, 7, 8])], masks=[[True]])


def test_a_conversation_is_encoded_as_it_is_trained_on(encoder):
    """Turns of the assistant end with EOS, which a prompt of the same text does not have."""
    talk = [("user", "hello"), ("assistant", "search[ it ]"), ("tool", "Yes."), ("assistant", "look"), ("tool", "No.")]
    messages = [{"role": role, "content": content} for role, content in talk]
    (prompt, response), mask = conversation_row(encoder, render_prompt(messages), "No.", 400, learn_from=1)
    ids = encoder.conversation(messages)
    assert [*prompt, *response] == [*ids, *encoder.response("No.")]
    assert ids.count(encoder.eos_id) == 2
    assert sum(mask) == sum(len(encoder.response(text)) for text in ("search[ it ]", "look", "No."))
    # a cut one keeps its end, and its BOS where it has one
    assert encoder.conversation(messages, max_tokens=9)[-8:] == ids[-8:]
    assert encoder.counts["prompts cut at the beginning"] == 1
    with_bos = Encoder(llama_tokenizer([PROMPT]))
    full = with_bos.conversation(messages)
    assert with_bos.conversation(messages, max_tokens=6) == [full[0], *full[-5:]]
    # without a turn of the assistant it is a prompt
    assert encoder.conversation(messages[:1]) == encoder.prompt(render_prompt(messages[:1]))


def test_both_sides_of_a_pair_have_the_same_prompt_if_it_is_cut(encoder):
    """At most 32 tokens, a quarter (8) for the longer response: the prompt has 24, also next to the short response."""
    pair = Pair(f"\n\nHuman: {REPLY * 20}\n\nAssistant:", "No.", REPLY * 20)
    (prompt, chosen), (same_prompt, rejected) = pair_rows(encoder, pair, 32)
    assert prompt == same_prompt
    assert (len(prompt), len(rejected)) == (24, 8)
    assert chosen == encoder.response("No.")
