"""Checks of one forward pass: log-probabilities against an independent reference, and what must not change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig

from rlhf_lab.doctor.findings import Check, Finding, pass_or_fail, within
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import capped, exact_kl, has_linear_head, head_cap, token_logps
from rlhf_lab.models.shared_prompt import (
    Way,
    can_pack,
    can_take_two_passes,
    computed_as,
    may_be_masked,
    takes_flash_attention,
)
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.local import LocalSampler

EXACT = 1e-6
"""Largest difference, in nats, between a model and a copy of itself in the same arithmetic."""
PADDING = 7
"""Padding tokens added on the right in `padding_invariance`."""
MAX_HALF_GAP = 0.1
"""Mean nats per token between bfloat16 and float32 above which importance ratios start far from 1."""


def _largest_gap(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; infinite where a value is not a number."""
    gap = (a.double() - b.double()).abs()
    return float(gap.max()) if bool(gap.isfinite().all()) else float("inf")


def _logps(subject: Subject, batch: TokenBatch) -> Tensor:
    with torch.no_grad():
        return token_logps(subject.model, batch).logps_N


def log_probabilities(subject: Subject) -> Finding:
    """The lab's log-probabilities against a float64 log-softmax over the model's own logits, row by row."""
    expected = []
    for (prompt, reply), logits_TV in zip(subject.rows, subject.reference_logits, strict=True):
        for t, token in enumerate(reply):
            logits_V = logits_TV[len(prompt) + t - 1]  # the position before a token predicts it
            expected.append(float(logits_V.double().log_softmax(0)[token]))
    ours = _logps(subject, subject.batch).cpu()
    if len(ours) != len(expected):
        advice = "tokens are masked that should be trained, or the reverse: see masks"
        return pass_or_fail(False, f"{len(ours)} log-probabilities", f"{len(expected)}", advice)
    advice = "the model does more than head(backbone(x)), or a mask is off by one: report it with this table"
    return within(_largest_gap(ours, torch.tensor(expected)), subject.tolerance, "nats", advice)


def output_head(subject: Subject) -> Finding:
    """Whether only reply positions need go through the head: true where logits are head(backbone(x)), or capped."""
    causal: Any = subject.model
    if not has_linear_head(causal):
        remark = "logits are scaled or else: they are computed at every position, exact and slower"
        return Finding("pass", "more than a linear layer", advice=remark)
    prompt, reply = subject.rows[0]
    expected = subject.reference_logits[0]
    ids = torch.tensor([[*prompt, *reply]], device=subject.device)
    with torch.no_grad():
        hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
        ours = capped(causal.get_output_embeddings()(hidden)[0], head_cap(causal))
    advice = "it looked linear on a short input and is not on this row: the log-probabilities above are wrong"
    return within(_largest_gap(ours, expected), subject.tolerance, "in the logits", advice)


def shared_prompt(subject: Subject) -> Finding:
    """Rows whose prompt is computed once, in a pass of its own, against whole rows."""
    if not can_take_two_passes(_backbone(subject)):
        remark = "this architecture cannot go on from a cache exactly; replies are computed with their prompts"
        return Finding("pass", "not used", advice=remark)
    return _against_whole_rows(subject, "two passes")


def packed_rows(subject: Subject) -> Finding:
    """Rows laid side by side, behind one copy of their prompt, against whole rows."""
    if not can_pack(_backbone(subject)):
        remark = "this architecture takes no mask or positions of packed rows; padded rows are computed"
        return Finding("pass", "not used", advice=remark)
    return _against_whole_rows(subject, "packed rows")


def _backbone(subject: Subject) -> nn.Module:
    backbone: nn.Module = subject.model.base_model  # type: ignore[assignment]
    return backbone


def _against_whole_rows(subject: Subject, way: Way) -> Finding:
    """Log-probabilities of rows of which some share a prompt, computed in one way and as whole rows."""
    prompt = subject.rows[0][0]
    shared = [(prompt, reply) for _, reply in subject.rows]
    batch = TokenBatch.from_rows([*shared, *subject.rows[1:]], subject.device)
    if batch.prompt_of is None:
        return Finding("pass", "not used", advice="one row, or rows without a prompt, have nothing to share")
    config: Any = _backbone(subject).config
    if not takes_flash_attention(config) and not may_be_masked(config, batch.tokens_BT.shape[1]):
        remark = "rows reach the end of a sliding window, or of the positions that rotations were made for"
        return Finding("pass", "not used", advice=f"{remark}; they are computed whole")
    with computed_as(way):
        logps_N = _logps(subject, batch)
    with computed_as("whole rows"):
        expected_N = _logps(subject, batch)
    gap = _largest_gap(logps_N, expected_N)
    advice = "report it with this table; algorithm.micro_batch_tokens=1 trains on one row at a time until then"
    return within(gap, subject.tolerance, "nats", advice)


def batch_invariance(subject: Subject) -> Finding:
    """A row by itself against the same row among others."""
    alone = [_logps(subject, TokenBatch.from_rows([row], subject.device)) for row in subject.rows]
    gap = _largest_gap(torch.cat(alone), _logps(subject, subject.batch))
    advice = "the model mixes rows of a batch (batch statistics, expert capacity): results depend on the batch size"
    return within(gap, subject.tolerance, "nats", advice)


def padding_invariance(subject: Subject) -> Finding:
    """More padding on the right, of zeros and of EOS."""
    batch = subject.batch
    expected = _logps(subject, batch)
    gaps = []
    for fill in (0, subject.encoder.eos_id):
        padded = dataclasses.replace(batch, tokens_BT=F.pad(batch.tokens_BT, (0, PADDING), value=fill))
        gaps.append(_largest_gap(_logps(subject, padded), expected))
    advice = "padding on the right reaches real tokens: the model is not causal"
    return within(max(gaps), subject.tolerance, "nats", advice)


def dropout(subject: Subject) -> Finding:
    """Two passes in training mode agree: a log-probability must not depend on the call."""
    modules = subject.model.named_modules()
    active = [name for name, module in modules if isinstance(module, nn.Dropout) and module.p > 0]
    was_training = subject.model.training
    subject.model.train()
    try:
        gap = _largest_gap(_logps(subject, subject.batch), _logps(subject, subject.batch))
    finally:
        subject.model.train(was_training)
    example = f": {active[0]}" if active else ""
    advice = f"dropout is on{example}; set every dropout in the model's config.json to 0"
    measured = f"{len(active)} dropout layers on; two passes differ by {gap:.2g} nats"
    return pass_or_fail(gap == 0 and not active, measured, "none, 0", advice)


def step_zero(subject: Subject) -> Finding:
    """Before the first step the policy is its reference: KL 0, ratio 1."""
    batch = subject.batch
    reference = subject.reference()
    with torch.no_grad():
        ratio_N = (token_logps(subject.model, batch).logps_N - token_logps(reference, batch).logps_N).exp()
    kl = float(exact_kl(subject.model, reference, batch).abs().max())
    gap = _largest_gap(ratio_N, torch.ones_like(ratio_N))
    advice = (
        "policy and reference are not one model: an adapter that does not start at 0, or weights that failed to load"
    )
    measured = f"KL {kl:.2g} nats, |ratio − 1| {gap:.2g}"
    return pass_or_fail(kl <= EXACT and gap <= EXACT, measured, f"≤ {EXACT:g}", advice)


def sampler_ratio(subject: Subject) -> Finding:
    """Log-probabilities that the sampler returns against those that training computes for the same tokens."""
    settings = subject.sampling
    samples = LocalSampler(settings, subject.encoder.stop_ids).sample(subject.model, subject.prompts, 2, seed=0)
    groups = zip(samples.prompts, samples.replies_BG, strict=True)
    rows = [(prompt, reply) for prompt, replies in groups for reply in replies]
    sampled_N = torch.tensor([logp for group in samples.logps_BG for reply in group for logp in reply])
    batch = TokenBatch.from_rows(rows, subject.device)
    with torch.no_grad():
        trained_N = token_logps(subject.model, batch, temperature=settings.temperature).logps_N.cpu()
    advice = "the sampler is not the policy that is trained, so ratios do not start at 1: report it with this table"
    gap = _largest_gap((trained_N - sampled_N).exp(), torch.ones_like(trained_N))
    name = "the lab's decoder" if _has_decoder(subject) else "the model's own forward"
    return within(gap, subject.tolerance, f"({len(trained_N)} tokens, {name})", advice, of="|ratio − 1| at most")


def _has_decoder(subject: Subject) -> bool:
    """Whether the sampler has a decoder of its own for this architecture."""
    positions = max(map(len, subject.prompts)) + subject.sampling.max_new_tokens
    return Decoder.of(subject.model, next(subject.model.parameters()).dtype, positions) is not None


def greedy(subject: Subject) -> Finding:
    """Greedy replies of the lab's sampler against Hugging Face's `generate`, up to the first tie."""
    settings = subject.sampling
    stop_ids = list(subject.encoder.stop_ids)
    samples = LocalSampler(settings, stop_ids).sample(subject.model, subject.prompts, 1, seed=0, temperature=0.0)
    greedy_config = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=stop_ids,
        pad_token_id=stop_ids[0],
    )
    equal_tokens = 0
    different_replies = 0
    with _generation_config(subject.model, greedy_config), torch.no_grad():
        for prompt, (ours,) in zip(subject.prompts, samples.replies_BG, strict=True):
            ids = torch.tensor([prompt], device=subject.device)
            output = subject.model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
            theirs = output[0, len(prompt) :].tolist()
            pairs = enumerate(zip(ours, theirs, strict=False))
            first_difference = next((t for t, (our, their) in pairs if our != their), None)
            if first_difference is None:
                equal_tokens += len(ours)
                different_replies += len(ours) != len(theirs)
                continue
            equal_tokens += first_difference
            # After a tie both replies are greedy, and nothing behind it can be compared.
            t = first_difference
            different_replies += not _tied(subject, [*prompt, *ours[:t]], ours[t], theirs[t])
    advice = "the sampler does not compute what the model computes: report it with this table"
    measured = f"{equal_tokens} tokens equal, {different_replies} of {len(samples.prompts)} replies differ"
    return pass_or_fail(not different_replies, measured, "0", advice)


@contextmanager
def _generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Put `config` in place of the model's own generation settings, which may for example penalise repetition."""
    original = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = original


def _tied(subject: Subject, tokens: list[int], first: int, second: int) -> bool:
    """Whether two next tokens are equally likely within rounding."""
    ids = torch.tensor([tokens], device=subject.device)
    logits_V = subject.model(input_ids=ids, use_cache=False).logits[0, -1]
    return float((logits_V[first] - logits_V[second]).abs()) <= subject.tolerance


def half_precision(subject: Subject) -> Finding:
    """What bfloat16 does to log-probabilities, where the config asks for it."""
    if "bfloat16" not in (subject.config.runtime.dtype, subject.config.rollout.dtype):
        return Finding("skip", "runtime.dtype and rollout.dtype are float32")
    with torch.no_grad(), torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
        half_N = token_logps(subject.model, subject.batch).logps_N
    gap_N = (half_N.double() - _logps(subject, subject.batch).double()).abs()
    mean = float(gap_N.mean()) if bool(gap_N.isfinite().all()) else float("inf")
    measured = f"mean {mean:.2g}, largest {float(gap_N.max()):.2g} nats per token from float32"
    advice = "use runtime.dtype=float32 and rollout.dtype=model"
    return pass_or_fail(mean <= MAX_HALF_GAP, measured, f"mean ≤ {MAX_HALF_GAP:g}", advice)


FORWARD = [
    Check("log-probabilities", log_probabilities),
    Check("output head", output_head),
    Check("shared prompt", shared_prompt),
    Check("packed rows", packed_rows),
    Check("batch invariance", batch_invariance),
    Check("padding invariance", padding_invariance),
    Check("dropout off", dropout),
    Check("step-0 KL and ratio", step_zero, copies=1),
    Check("sampler ratio", sampler_ratio, copies=1),
    Check("greedy = generate", greedy, copies=1),
    Check("bfloat16 gap", half_precision),
]
