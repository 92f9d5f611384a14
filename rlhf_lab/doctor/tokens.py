"""Text to tokens and back: round trip, special tokens, where replies end, what is trained on."""

from __future__ import annotations

import dataclasses

import torch

from rlhf_lab.doctor.findings import Check, Finding, pass_or_fail
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.models.encoding import Encoder, TokenBatch

CUT_SHARE = 0.1
"""Share of replies without their end above which a policy learns too little about ending."""


def round_trip(subject: Subject) -> Finding:
    """Prompts and replies decode to the text they came from; of a templated prompt, every message is in it."""
    encoder = subject.encoder
    altered: list[str] = []
    texts = 0
    for pair in subject.pairs:
        for reply in filter(None, (pair.chosen, pair.rejected)):
            texts += 1
            expected = reply.rstrip() if encoder.chat else reply.strip()
            if encoder.text(encoder.response(reply)) != expected:
                altered.append(reply)
        texts += 1
        decoded = encoder.tokenizer.decode(encoder.prompt(pair.prompt), clean_up_tokenization_spaces=False)
        messages = [pair.prompt]
        if encoder.to_conversation:
            messages = [message["content"].strip() for message in encoder.to_conversation(pair.prompt)[0]]
        if not all(message in decoded for message in messages):
            altered.append(pair.prompt)
    example = f"such as {altered[0].strip()[:40]!r}; " if altered else ""
    advice = (
        f"{example}the tokenizer loses characters (unknown tokens, lower case): use the one the model was made with"
    )
    return pass_or_fail(not altered, f"{texts - len(altered)} of {texts} texts come back", "all", advice)


def vocabulary(subject: Subject) -> Finding:
    """Every token the tokenizer can make has an embedding."""
    embeddings = subject.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens = len(subject.encoder.tokenizer)
    advice = "a token without an embedding ends the run: resize the embeddings, or use the model's own tokenizer"
    return pass_or_fail(
        tokens <= embeddings, f"{tokens} tokens, {embeddings} embeddings", "tokens ≤ embeddings", advice
    )


def special_tokens(subject: Subject) -> Finding:
    """A text that spells out the end token contains ordinary tokens: it must not end a reply."""
    encoder = subject.encoder
    spelled = encoder.tokenizer.eos_token
    ids = encoder.response(f"one {spelled} two")
    inside = sum(token == encoder.eos_id for token in ids[:-1])
    advice = f"a reply that mentions {spelled} ends there; use a fast tokenizer (tokenizer.json)"
    return pass_or_fail(inside == 0, f"{spelled} in a text gives {inside} end tokens", "0", advice)


def eos(subject: Subject) -> Finding:
    """Replies that fit end in EOS, hold no other, and EOS is trained on."""
    encoder = subject.encoder
    limit = subject.max_length
    complete = [(prompt, reply) for prompt, reply in subject.full_rows if len(prompt) + len(reply) < limit]
    if not complete:
        measured = f"no reply of {len(subject.full_rows)} fits algorithm.max_length={limit}"
        return Finding("skip", measured, advice=_raise_length(limit))
    ended = [
        (prompt, reply)
        for prompt, reply in complete
        if reply[-1:] == [encoder.eos_id] and reply.count(encoder.eos_id) == 1
    ]
    trained = 0
    for row in ended:
        batch = TokenBatch.from_rows([row])
        trained += int(batch.tokens_BT[batch.targets()][-1]) == encoder.eos_id
    measured = f"EOS {encoder.eos_id} ends {len(ended)} of {len(complete)} replies, {trained} of them in the mask"
    advice = "a policy that is not trained on EOS never stops; give the tokenizer the model's eos_token"
    return pass_or_fail(trained == len(complete), measured, "all", advice)


def truncation(subject: Subject) -> Finding:
    """How many replies lose their end, and how many prompts their beginning, at `algorithm.max_length`."""
    # An encoder counts the rows it cuts; a new one starts from 0.
    counting = Encoder(subject.encoder.tokenizer, subject.encoder.to_conversation)
    for pair in subject.pairs:
        for reply in filter(None, (pair.chosen, pair.rejected)):
            counting.row(pair.prompt, reply, subject.max_length)
    rows = counting.counts["rows"]
    cut_replies = counting.counts.get("replies cut at the end (no EOS)", 0)
    cut_prompts = counting.counts.get("prompts cut at the beginning", 0)
    measured = f"of {rows} rows, {cut_replies} replies without their end, {cut_prompts} prompts without their beginning"
    advice = _raise_length(subject.max_length)
    return pass_or_fail(cut_replies <= CUT_SHARE * rows, measured, f"≤ {CUT_SHARE:.0%} of replies", advice)


def _raise_length(limit: int) -> str:
    return f"raise algorithm.max_length={limit}; a reply without its end teaches nothing about ending"


def masks(subject: Subject) -> Finding:
    """Training sees every reply token and nothing else, in a batch with rows of different lengths."""
    rows = subject.rows
    batch = subject.shared_batch
    expected = {
        (index, len(prompt) + t)
        for index, (prompt, reply) in enumerate(rows)
        for t in range(len(reply))
        if prompt or t  # without a prompt nothing predicts the first token
    }
    row_N, column_N = batch.targets()
    trained = set(zip(row_N.tolist(), column_N.tolist(), strict=True))
    missing = len(expected - trained)
    extra = len(trained - expected)
    advice = "a row's mask is [prompt length, prompt + reply length): compare TokenBatch.targets with it"
    measured = f"{len(trained)} tokens trained; {missing} reply tokens left out, {extra} others taken"
    return pass_or_fail(not (missing or extra), measured, "0 and 0", advice)


def padding_token(subject: Subject) -> Finding:
    """A pad token that is EOS does no harm: masks come from lengths, so padding with EOS changes no mask."""
    encoder = subject.encoder
    batch = subject.shared_batch
    pad_id = encoder.tokenizer.pad_token_id
    column_T = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)
    filled = batch.tokens_BT.masked_fill(column_T >= batch.length_B[:, None], encoder.eos_id)
    padded_with_eos = dataclasses.replace(batch, tokens_BT=filled, prompt_of=None)
    both_targets = zip(batch.targets(), padded_with_eos.targets(), strict=True)
    same = all(torch.equal(original, padded) for original, padded in both_targets)
    relation = "none"
    if pad_id is not None:
        relation = f"{pad_id}, EOS too" if pad_id == encoder.eos_id else f"{pad_id}, EOS {encoder.eos_id}"
    advice = "a mask depends on the pad token: a real EOS is then taken for padding and never trained"
    return pass_or_fail(
        same, f"pad id {relation}; padding of EOS {'keeps' if same else 'changes'} the masks", "kept", advice
    )


def chat_template(subject: Subject) -> Finding:
    """The tokenizer's template is used exactly when the config says so."""
    encoder = subject.encoder
    written = getattr(subject.config.model, "chat_template", False)
    template = getattr(encoder.tokenizer, "chat_template", None)
    used = encoder.chat is not None
    configured = bool(template) if written is None else written
    if configured and not template:
        advice = "the tokenizer has no chat template; use model.chat_template=false"
        return pass_or_fail(False, "configured, and there is none", "a template", advice)
    measured = f"{'there is one' if template else 'there is none'}, {'used' if used else 'not used'}"
    if encoder.to_conversation:
        prompt = subject.pairs[0].prompt
        messages, tools = encoder.to_conversation(prompt)
        rendered = encoder.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        advice = "prompts differ from the template's own tokens, such as a doubled BOS: report it with this table"
        same_tokens = encoder.prompt(prompt) == list(rendered)
        return pass_or_fail(configured and same_tokens, measured, "the template's own tokens", advice)
    remark = "an instruction-tuned model answers better with its template: model.chat_template=null" if template else ""
    return Finding("fail" if configured else "pass", measured, "as configured", remark)


TOKENS = [
    Check("round trip", round_trip),
    Check("vocabulary", vocabulary),
    Check("special tokens", special_tokens),
    Check("EOS", eos),
    Check("truncation", truncation),
    Check("masks", masks),
    Check("padding token", padding_token),
    Check("chat template", chat_template),
]
