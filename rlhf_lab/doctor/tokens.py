"""Text to tokens and back: round trip, special tokens, where replies end, what is trained on."""

from __future__ import annotations

import torch

from rlhf_lab.doctor.findings import Check, Finding, found
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.models.encoding import Encoder, TokenBatch

CUT_SHARE = 0.1
"""Share of replies without their end from which most of what a policy learns about ending is lost."""


def round_trip(subject: Subject) -> Finding:
    """Prompts and replies decode to the text they came from; of a templated prompt, every message is in it."""
    encoder, wrong, texts = subject.encoder, [], 0
    for pair in subject.pairs:
        for reply in filter(None, (pair.chosen, pair.rejected)):
            texts += 1
            if encoder.text(encoder.response(reply)) != reply.strip():
                wrong.append(reply)
        texts += 1
        decoded = encoder.tokenizer.decode(encoder.prompt(pair.prompt), clean_up_tokenization_spaces=False)
        parts = (
            [m["content"].strip() for m in encoder.to_messages(pair.prompt)] if encoder.to_messages else [pair.prompt]
        )
        if not all(part in decoded for part in parts):
            wrong.append(pair.prompt)
    example = f"such as {wrong[0].strip()[:40]!r}; " if wrong else ""
    advice = (
        f"{example}the tokenizer loses characters (unknown tokens, lower case): use the one the model was made with"
    )
    return found(not wrong, f"{texts - len(wrong)} of {texts} texts come back", "all", advice)


def vocabulary(subject: Subject) -> Finding:
    """Every token the tokenizer can make has an embedding."""
    rows, size = subject.model.get_input_embeddings().weight.shape[0], len(subject.encoder.tokenizer)  # type: ignore[operator]
    advice = "a token without an embedding ends the run: resize the embeddings, or use the model's own tokenizer"
    return found(size <= rows, f"{size} tokens, {rows} embeddings", "tokens ≤ embeddings", advice)


def special_tokens(subject: Subject) -> Finding:
    """The end token's spelling in a text is text: it must not end a reply."""
    encoder = subject.encoder
    spelled = encoder.tokenizer.eos_token
    ids = encoder.response(f"one {spelled} two")
    inside = sum(token == encoder.eos_id for token in ids[:-1])
    advice = f"a reply that mentions {spelled} ends there; use a fast tokenizer (tokenizer.json)"
    return found(inside == 0, f"{spelled} in a text gives {inside} end tokens", "0", advice)


def eos(subject: Subject) -> Finding:
    """Replies that fit end in EOS, hold no other, and EOS is trained on."""
    encoder, limit = subject.encoder, subject.max_length
    complete = [(p, r) for p, r in subject.full_rows if len(p) + len(r) < limit]
    if not complete:
        return Finding(
            "skip", f"no reply of {len(subject.full_rows)} fits algorithm.max_length={limit}", "", _longer(limit)
        )
    ended = [row for row in complete if row[1][-1:] == [encoder.eos_id] and row[1].count(encoder.eos_id) == 1]
    trained = 0
    for row in ended:
        batch = TokenBatch.from_rows([row])
        trained += int(batch.tokens_BT[batch.targets()][-1]) == encoder.eos_id
    measured = f"EOS {encoder.eos_id} ends {len(ended)} of {len(complete)} replies, {trained} of them in the mask"
    advice = "a policy that is not trained on EOS never stops; give the tokenizer the model's eos_token"
    return found(trained == len(complete), measured, "all", advice)


def truncation(subject: Subject) -> Finding:
    """How many replies lose their end, and how many prompts their beginning, at `algorithm.max_length`."""
    counted = Encoder(subject.encoder.tokenizer, subject.encoder.to_messages)
    for pair in subject.pairs:
        for reply in filter(None, (pair.chosen, pair.rejected)):
            counted.row(pair.prompt, reply, subject.max_length)
    rows, cut = counted.counts["rows"], counted.counts.get("replies cut at the end (no EOS)", 0)
    prompts = counted.counts.get("prompts cut at the beginning", 0)
    measured = f"of {rows} rows, {cut} replies without their end, {prompts} prompts without their beginning"
    return found(cut <= CUT_SHARE * rows, measured, f"≤ {CUT_SHARE:.0%} of replies", _longer(subject.max_length))


def _longer(limit: int) -> str:
    return f"raise algorithm.max_length={limit}; a reply without its end teaches nothing about ending"


def masks(subject: Subject) -> Finding:
    """What is trained on is every reply token and nothing else, in rows of different lengths side by side."""
    rows, batch = subject.rows, subject.shared_batch
    wanted = {(i, len(p) + t) for i, (p, r) in enumerate(rows) for t in range(len(r)) if p or t}
    row_N, column_N = batch.targets()
    trained = set(zip(row_N.tolist(), column_N.tolist(), strict=True))
    missing, extra = len(wanted - trained), len(trained - wanted)
    advice = "a row's mask is [prompt length, prompt + reply length): compare TokenBatch.targets with it"
    measured = f"{len(trained)} tokens trained; {missing} reply tokens left out, {extra} others taken"
    return found(not (missing or extra), measured, "0 and 0", advice)


def padding_token(subject: Subject) -> Finding:
    """A pad id that is EOS does no harm, because masks come from lengths: padding made of EOS changes no mask."""
    encoder, batch = subject.encoder, subject.shared_batch
    pad = encoder.tokenizer.pad_token_id
    column_T = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)
    filled = batch.tokens_BT.masked_fill(column_T >= batch.length_B[:, None], encoder.eos_id)
    other = TokenBatch(filled, batch.prompt_len_B, batch.length_B)
    same = all(torch.equal(a, b) for a, b in zip(batch.targets(), other.targets(), strict=True))
    relation = "none" if pad is None else f"{pad}, EOS too" if pad == encoder.eos_id else f"{pad}, EOS {encoder.eos_id}"
    advice = "a mask depends on the pad token: a real EOS is then taken for padding and never trained"
    return found(same, f"pad id {relation}; padding of EOS {'keeps' if same else 'changes'} the masks", "kept", advice)


def chat_template(subject: Subject) -> Finding:
    """The tokenizer's template is used exactly when the config says so."""
    encoder, written = subject.encoder, getattr(subject.config.model, "chat_template", False)
    template, used = getattr(encoder.tokenizer, "chat_template", None), encoder.chat is not None
    wanted = bool(template) if written is None else written
    if wanted and not template:
        advice = "the tokenizer has no chat template; use model.chat_template=false"
        return found(False, "configured, and there is none", "a template", advice)
    measured = f"{'there is one' if template else 'there is none'}, {'used' if used else 'not used'}"
    if encoder.to_messages:
        prompt = subject.pairs[0].prompt
        rendered = encoder.tokenizer.apply_chat_template(
            encoder.to_messages(prompt), tokenize=True, add_generation_prompt=True, return_dict=False
        )
        advice = "prompts differ from the template's own tokens, such as a doubled BOS: report it with this table"
        return found(wanted and encoder.prompt(prompt) == list(rendered), measured, "the template's own tokens", advice)
    remark = "an instruction-tuned model answers better with its template: model.chat_template=null" if template else ""
    return Finding("fail" if wanted else "pass", measured, "as configured", remark)


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
