"""One forward pass: log-probabilities against an independent reference, and everything they must not depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig

from rlhf_lab.doctor.findings import Check, Finding, found, within
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, has_linear_head, token_logps
from rlhf_lab.models.shared_prompt import can_share
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.local import LocalSampler

EXACT = 1e-6
"""Nats between a model and a copy of itself in the same arithmetic."""
PADDING = 7
HALF_GAP = 0.1
"""Mean nats per token between bfloat16 and float32 above which ratios start far from 1."""


def _largest(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; infinite where a value is not a number."""
    gap = (a.double() - b.double()).abs()
    return float(gap.max()) if bool(gap.isfinite().all()) else float("inf")


def _logps(subject: Subject, batch: TokenBatch) -> Tensor:
    with torch.no_grad():
        return token_logps(subject.model, batch).logps_N


def log_probabilities(subject: Subject) -> Finding:
    """The lab's log-probabilities against a float64 log-softmax over the model's own logits, row by row."""
    expected = [
        float(logits[len(prompt) + t - 1].double().log_softmax(0)[token])
        for (prompt, reply), logits in zip(subject.rows, subject.reference_logits, strict=True)
        for t, token in enumerate(reply)
    ]
    ours = _logps(subject, subject.batch).cpu()
    if len(ours) != len(expected):
        advice = "tokens are masked that should be trained, or the reverse: see masks"
        return found(False, f"{len(ours)} log-probabilities", f"{len(expected)}", advice)
    advice = "the model does more than head(backbone(x)), or a mask is off by one: report it with this table"
    return within(_largest(ours, torch.tensor(expected)), subject.tolerance, "nats", advice)


def output_head(subject: Subject) -> Finding:
    """Whether only reply positions need go through the head: true where logits are head(backbone(x))."""
    causal: Any = subject.model
    if not has_linear_head(causal):
        remark = "logits are scaled, capped or else: they are computed at every position, exact and slower"
        return Finding("pass", "more than a linear layer", advice=remark)
    (prompt, reply), expected = subject.rows[0], subject.reference_logits[0]
    ids = torch.tensor([[*prompt, *reply]], device=subject.device)
    with torch.no_grad():
        ours = causal.get_output_embeddings()(causal.base_model(input_ids=ids, use_cache=False).last_hidden_state)[0]
    advice = "it looked linear on a short input and is not on this row: the log-probabilities above are wrong"
    return within(_largest(ours, expected), subject.tolerance, "in the logits", advice)


def shared_prompt(subject: Subject) -> Finding:
    """Rows whose prompt is computed once against whole rows."""
    if not can_share(subject.model.base_model):  # type: ignore[arg-type]
        remark = "this architecture cannot go on from a cache exactly; whole rows are computed"
        return Finding("pass", "not used", advice=remark)
    prompt = subject.rows[0][0]
    batch = TokenBatch.from_rows([(prompt, reply) for _, reply in subject.rows], subject.device)
    whole = dataclasses.replace(batch, prompt_of_B=None, first_row_P=None)
    advice = "report it with this table; algorithm.micro_batch_tokens=1 trains on one row at a time until then"
    return within(_largest(_logps(subject, batch), _logps(subject, whole)), subject.tolerance, "nats", advice)


def batch_invariance(subject: Subject) -> Finding:
    """A row by itself against the same row among others."""
    alone = [_logps(subject, TokenBatch.from_rows([row], subject.device)) for row in subject.rows]
    advice = "the model mixes rows of a batch (batch statistics, expert capacity): results depend on the batch size"
    return within(_largest(torch.cat(alone), _logps(subject, subject.batch)), subject.tolerance, "nats", advice)


def padding_invariance(subject: Subject) -> Finding:
    """More padding on the right, of zeros and of EOS."""
    batch, gaps = subject.batch, []
    expected = _logps(subject, batch)
    for fill in (0, subject.encoder.eos_id):
        padded = dataclasses.replace(batch, tokens_BT=F.pad(batch.tokens_BT, (0, PADDING), value=fill))
        gaps.append(_largest(_logps(subject, padded), expected))
    advice = "padding on the right reaches real tokens: the model is not causal"
    return within(max(gaps), subject.tolerance, "nats", advice)


def dropout(subject: Subject) -> Finding:
    """Two passes in training mode are one: a log-probability must not depend on the call."""
    left = [name for name, module in subject.model.named_modules() if isinstance(module, nn.Dropout) and module.p > 0]
    mode = subject.model.training
    subject.model.train()
    try:
        gap = _largest(_logps(subject, subject.batch), _logps(subject, subject.batch))
    finally:
        subject.model.train(mode)
    advice = f"dropout is on{': ' + left[0] if left else ''}; set every dropout in the model's config.json to 0"
    measured = f"{len(left)} dropout layers on; two passes differ by {gap:.2g} nats"
    return found(gap == 0 and not left, measured, "none, 0", advice)


def step_zero(subject: Subject) -> Finding:
    """Before the first step the policy is its reference: KL 0, ratio 1."""
    batch, reference = subject.batch, subject.reference()
    with torch.no_grad():
        ratio = (token_logps(subject.model, batch).logps_N - token_logps(reference, batch).logps_N).exp()
    kl = float(exact_kl(subject.model, reference, batch).abs().max())
    gap = _largest(ratio, torch.ones_like(ratio))
    advice = (
        "policy and reference are not one model: an adapter that does not start at 0, or weights that failed to load"
    )
    measured = f"KL {kl:.2g} nats, |ratio − 1| {gap:.2g}"
    return found(kl <= EXACT and gap <= EXACT, measured, f"≤ {EXACT:g}", advice)


def sampler_ratio(subject: Subject) -> Finding:
    """Log-probabilities that the sampler returns against those that training computes for the same tokens."""
    settings = subject.sampling
    samples = LocalSampler(settings, subject.encoder.stop_ids).sample(subject.model, subject.prompts, 2, seed=0)
    rows = [(p, r) for p, group in zip(samples.prompts, samples.replies_BG, strict=True) for r in group]
    theirs = torch.tensor([x for group in samples.logps_BG for reply in group for x in reply])
    batch = TokenBatch.from_rows(rows, subject.device)
    with torch.no_grad():
        ours = token_logps(subject.model, batch, temperature=settings.temperature).logps_N.cpu()
    advice = "the sampler is not the policy that is trained, so ratios do not start at 1: report it with this table"
    gap = _largest((ours - theirs).exp(), torch.ones_like(ours))
    name = "the lab's decoder" if _has_decoder(subject) else "the model's own forward"
    return within(gap, subject.tolerance, f"({len(ours)} tokens, {name})", advice, of="|ratio − 1| at most")


def _has_decoder(subject: Subject) -> bool:
    positions = max(map(len, subject.prompts)) + subject.sampling.max_new_tokens
    return Decoder.of(subject.model, next(subject.model.parameters()).dtype, positions) is not None


def greedy(subject: Subject) -> Finding:
    """Greedy replies of the lab's sampler against Hugging Face's `generate`, up to the first tie."""
    settings, stop_ids = subject.sampling, list(subject.encoder.stop_ids)
    samples = LocalSampler(settings, stop_ids).sample(subject.model, subject.prompts, 1, seed=0, temperature=0.0)
    plain = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=stop_ids,
        pad_token_id=stop_ids[0],
    )
    same, different = 0, 0
    with _generation(subject.model, plain), torch.no_grad():
        for prompt, (ours,) in zip(subject.prompts, samples.replies_BG, strict=True):
            ids = torch.tensor([prompt], device=subject.device)
            out = subject.model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
            theirs = out[0, len(prompt) :].tolist()
            agree = next((t for t, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            same += len(ours) if agree is None else agree
            if agree is None:
                different += len(ours) != len(theirs)
            else:
                different += not _tied(subject, [*prompt, *ours[:agree]], ours[agree], theirs[agree])
    advice = "the sampler does not compute what the model computes: report it with this table"
    return found(
        not different, f"{same} tokens equal, {different} of {len(samples.prompts)} replies differ", "0", advice
    )


@contextmanager
def _generation(model: Any, config: GenerationConfig) -> Iterator[None]:
    """`config` in place of the model's own generation settings, which may penalise repetition or else."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def _tied(subject: Subject, tokens: list[int], first: int, second: int) -> bool:
    """Whether two next tokens are equally likely within rounding."""
    z_V = subject.model(input_ids=torch.tensor([tokens], device=subject.device), use_cache=False).logits[0, -1]
    return float((z_V[first] - z_V[second]).abs()) <= subject.tolerance


def half_precision(subject: Subject) -> Finding:
    """What bfloat16 does to log-probabilities, where the config asks for it."""
    asked = (subject.config.runtime.dtype, subject.config.rollout.dtype)
    if "bfloat16" not in asked:
        return Finding("skip", "runtime.dtype and rollout.dtype are float32")
    with torch.no_grad(), torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
        half = token_logps(subject.model, subject.batch).logps_N
    gap_N = (half.double() - _logps(subject, subject.batch).double()).abs()
    mean = float(gap_N.mean()) if bool(gap_N.isfinite().all()) else float("inf")
    measured = f"mean {mean:.2g}, largest {float(gap_N.max()):.2g} nats per token from float32"
    return found(
        mean <= HALF_GAP, measured, f"mean ≤ {HALF_GAP:g}", "use runtime.dtype=float32 and rollout.dtype=model"
    )


FORWARD = [
    Check("log-probabilities", log_probabilities),
    Check("output head", output_head),
    Check("shared prompt", shared_prompt),
    Check("batch invariance", batch_invariance),
    Check("padding invariance", padding_invariance),
    Check("dropout off", dropout),
    Check("step-0 KL and ratio", step_zero, copies=1),
    Check("sampler ratio", sampler_ratio, copies=1),
    Check("greedy = generate", greedy, copies=1),
    Check("bfloat16 gap", half_precision),
]
