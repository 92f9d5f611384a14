"""Checks of the tokenizer: round trip of text, special tokens, ends of responses, and the training mask."""

from __future__ import annotations

import dataclasses

import torch

from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail
from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.models.chat import template_on_one_day
from rlhf_lab.models.encoding import Encoder, TokenBatch

CUT_SHARE = 0.1
"""Maximum fraction of responses that are cut off; above it a policy learns too little about ending."""


def round_trip(subject: ExaminedModel) -> CheckResult:
    """Check that prompts and responses decode to their text; a templated prompt must contain every message."""
    encoder = subject.encoder
    altered: list[str] = []
    texts = 0
    for pair in subject.pairs:
        for response in filter(None, (pair.chosen, pair.rejected)):
            texts += 1
            # An encoder strips responses at both ends, but a chat encoder only at the end.
            expected = response.rstrip() if encoder.chat else response.strip()
            if encoder.text(encoder.response(response)) != expected:
                altered.append(response)
        texts += 1
        decoded = encoder.tokenizer.decode(encoder.prompt(pair.prompt), clean_up_tokenization_spaces=False)
        messages = [pair.prompt]
        if encoder.to_conversation:
            messages = [message["content"].strip() for message in encoder.to_conversation(pair.prompt)[0]]
        if not all(message in decoded for message in messages):
            altered.append(pair.prompt)
    example = f"such as {altered[0].strip()[:40]!r}; " if altered else ""
    hint = f"{example}the tokenizer loses characters (unknown tokens, lower case): use the model's own tokenizer"
    return pass_or_fail(not altered, f"{texts - len(altered)} of {texts} texts are unchanged", "all", hint)


def vocabulary(subject: ExaminedModel) -> CheckResult:
    """Check that every token of the tokenizer has an embedding."""
    embeddings = subject.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens = len(subject.encoder.tokenizer)
    hint = "a token without an embedding ends the run: resize the embeddings, or use the model's own tokenizer"
    return pass_or_fail(tokens <= embeddings, f"{tokens} tokens, {embeddings} embeddings", "tokens ≤ embeddings", hint)


def special_tokens(subject: ExaminedModel) -> CheckResult:
    """Check that a text that spells out the end token is encoded as ordinary tokens, which do not end a response."""
    encoder = subject.encoder
    spelled = encoder.tokenizer.eos_token
    ids = encoder.response(f"one {spelled} two")
    inside = sum(token == encoder.eos_id for token in ids[:-1])
    hint = f"a response that mentions {spelled} ends there; use a fast tokenizer (tokenizer.json)"
    return pass_or_fail(inside == 0, f"{spelled} in a text gives {inside} end tokens", "0", hint)


def eos(subject: ExaminedModel) -> CheckResult:
    """Check that responses that fit end in EOS, contain no other EOS, and that EOS is trained on."""
    encoder = subject.encoder
    limit = subject.max_length
    # rows below the limit were not cut, so they must have kept their EOS
    complete = [(prompt, response) for prompt, response in subject.full_rows if len(prompt) + len(response) < limit]
    if not complete:
        measured = f"no response of {len(subject.full_rows)} fits algorithm.max_length={limit}"
        return CheckResult("skip", measured, hint=_raise_length(limit))
    finished = [
        (prompt, response)
        for prompt, response in complete
        if response[-1:] == [encoder.eos_id] and response.count(encoder.eos_id) == 1
    ]
    trained = 0
    for row in finished:
        batch = TokenBatch.from_rows([row])
        trained += int(batch.tokens_BT[batch.targets()][-1]) == encoder.eos_id
    measured = f"EOS {encoder.eos_id} ends {len(finished)} of {len(complete)} responses, {trained} of them in the mask"
    hint = "a policy that is not trained on EOS never stops; give the tokenizer the model's eos_token"
    return pass_or_fail(trained == len(complete), measured, "all", hint)


def truncation(subject: ExaminedModel) -> CheckResult:
    """Check how many responses lose their end, and prompts their beginning, at `algorithm.max_length`."""
    # An encoder counts the rows that it cuts; a new encoder starts at 0.
    counting = Encoder(subject.encoder.tokenizer, subject.encoder.to_conversation)
    for pair in subject.pairs:
        for response in filter(None, (pair.chosen, pair.rejected)):
            counting.row(pair.prompt, response, subject.max_length)
    rows = counting.counts["rows"]
    cut_responses = counting.counts.get("replies cut at the end (no EOS)", 0)
    cut_prompts = counting.counts.get("prompts cut at the beginning", 0)
    measured = (
        f"of {rows} rows, {cut_responses} responses without their end, {cut_prompts} prompts without their beginning"
    )
    hint = _raise_length(subject.max_length)
    return pass_or_fail(cut_responses <= CUT_SHARE * rows, measured, f"≤ {CUT_SHARE:.0%} of responses", hint)


def _raise_length(limit: int) -> str:
    return f"raise algorithm.max_length={limit}; a response without its end teaches nothing about ending"


def masks(subject: ExaminedModel) -> CheckResult:
    """Check that training sees every response token and nothing else, in a batch with rows of different lengths."""
    rows = subject.rows
    batch = subject.shared_batch
    expected = {
        (index, len(prompt) + t)
        for index, (prompt, response) in enumerate(rows)
        for t in range(len(response))
        if prompt or t  # without a prompt nothing predicts the first token
    }
    row_N, column_N = batch.targets()
    trained = set(zip(row_N.tolist(), column_N.tolist(), strict=True))
    missing, extra = len(expected - trained), len(trained - expected)
    hint = "a row's mask is [prompt length, prompt + response length): compare TokenBatch.targets with it"
    measured = f"{len(trained)} tokens trained; {missing} response tokens left out, {extra} others included"
    return pass_or_fail(not (missing or extra), measured, "0 and 0", hint)


def padding_token(subject: ExaminedModel) -> CheckResult:
    """Check that padding with EOS changes no mask: masks come from lengths, so EOS may be the pad token."""
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
    hint = "a mask depends on the pad token: a real EOS is then treated as padding and never trained"
    return pass_or_fail(
        same, f"pad id {relation}; padding of EOS {'keeps' if same else 'changes'} the masks", "kept", hint
    )


def chat_template(subject: ExaminedModel) -> CheckResult:
    """Check that the tokenizer's template is used exactly if the config says so."""
    encoder = subject.encoder
    written = getattr(subject.config.model, "chat_template", False)
    template = getattr(encoder.tokenizer, "chat_template", None)
    used = encoder.chat is not None
    configured = bool(template) if written is None else written
    if configured and not template:
        hint = "the tokenizer has no chat template; use model.chat_template=false"
        return pass_or_fail(False, "configured, but the tokenizer has none", "a template", hint)
    measured = f"{'there is one' if template else 'there is none'}, {'used' if used else 'not used'}"
    if encoder.to_conversation:
        prompt = subject.pairs[0].prompt
        messages, tools = encoder.to_conversation(prompt)
        rendered = encoder.tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            chat_template=template_on_one_day(encoder.tokenizer, tools),
        )
        hint = "prompts differ from the template's own tokens, such as a doubled BOS: report it with this table"
        same_tokens = encoder.prompt(prompt) == list(rendered)
        return pass_or_fail(configured and same_tokens, measured, "the template's own tokens", hint)
    note = "an instruction-tuned model answers better with its template: model.chat_template=null" if template else ""
    return CheckResult("fail" if configured else "pass", measured, "as configured", note)


TOKENS = [
    DoctorCheck("round trip", round_trip),
    DoctorCheck("vocabulary", vocabulary),
    DoctorCheck("special tokens", special_tokens),
    DoctorCheck("EOS", eos),
    DoctorCheck("truncation", truncation),
    DoctorCheck("masks", masks),
    DoctorCheck("padding token", padding_token),
    DoctorCheck("chat template", chat_template),
]
