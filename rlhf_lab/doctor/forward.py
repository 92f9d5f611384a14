"""Checks of one forward pass: log-probabilities against an independent reference, and invariances of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig

from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail, within
from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import capped, exact_kl, has_linear_head, head_cap, token_logps
from rlhf_lab.models.shared_prompt import (
    RowLayout,
    can_pack,
    can_take_two_passes,
    computed_as,
    may_be_masked,
    takes_flash_attention,
)
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.local import LocalSampler

EXACT = 1e-6
"""Maximum difference, in nats, between a model and a copy of itself in the same precision."""
PADDING = 7
"""Number of padding tokens added on the right in `padding_invariance`."""
MAX_HALF_GAP = 0.1
"""Limit on the mean difference between bfloat16 and float32, nats per token; above it, importance ratios start far
from 1."""


def _largest_gap(a: Tensor, b: Tensor) -> float:
    """Return the maximum absolute difference; infinite if a value is not finite."""
    gap = (a.double() - b.double()).abs()
    return float(gap.max()) if bool(gap.isfinite().all()) else float("inf")


def _logps(subject: ExaminedModel, batch: TokenBatch) -> Tensor:
    """Return the log-probabilities that training computes for the response tokens of a batch, (N,)."""
    with torch.no_grad():
        return token_logps(subject.model, batch).logps_N


def log_probabilities(subject: ExaminedModel) -> CheckResult:
    """Compare training's log-probabilities with a float64 log-softmax over the model's own logits, row by row."""
    expected = [
        float(logits_TV[len(prompt) + t - 1].double().log_softmax(0)[token])  # the position before a token predicts it
        for (prompt, response), logits_TV in zip(subject.rows, subject.reference_logits, strict=True)
        for t, token in enumerate(response)
    ]
    ours = _logps(subject, subject.batch).cpu()
    if len(ours) != len(expected):
        hint = "tokens are masked that should be trained, or the reverse: see masks"
        return pass_or_fail(False, f"{len(ours)} log-probabilities", f"{len(expected)}", hint)
    hint = "the model does more than head(backbone(x)), or a mask is off by one: report it with this table"
    return within(_largest_gap(ours, torch.tensor(expected)), subject.tolerance, "nats", hint)


def output_head(subject: ExaminedModel) -> CheckResult:
    """Check that the logits are head(backbone(x)), possibly capped; then only response positions need the head."""
    causal: Any = subject.model
    if not has_linear_head(causal):
        note = "logits are scaled or similar: they are computed at every position, which is exact but slower"
        return CheckResult("pass", "more than a linear layer", hint=note)
    prompt, response = subject.rows[0]
    expected = subject.reference_logits[0]
    ids = torch.tensor([[*prompt, *response]], device=subject.device)
    with torch.no_grad():
        hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
        ours = capped(causal.get_output_embeddings()(hidden)[0], head_cap(causal))
    hint = "the head was linear on a short input but is not on this row: the log-probabilities above are wrong"
    return within(_largest_gap(ours, expected), subject.tolerance, "in the logits", hint)


def shared_prompt(subject: ExaminedModel) -> CheckResult:
    """Compare log-probabilities of rows whose prompt is computed once, in a separate pass, with those of full rows."""
    if not can_take_two_passes(_backbone(subject)):
        note = "this architecture cannot continue exactly from a KV cache; responses are computed with their prompts"
        return CheckResult("pass", "not used", hint=note)
    return _against_full_rows(subject, "two passes")


def packed_rows(subject: ExaminedModel) -> CheckResult:
    """Compare log-probabilities of rows that are packed behind one copy of their prompt with those of full rows."""
    if not can_pack(_backbone(subject)):
        note = "this architecture takes no mask or positions of packed rows; padded rows are computed"
        return CheckResult("pass", "not used", hint=note)
    return _against_full_rows(subject, "packed rows")


def _backbone(subject: ExaminedModel) -> nn.Module:
    backbone: nn.Module = subject.model.base_model  # type: ignore[assignment]
    return backbone


def _against_full_rows(subject: ExaminedModel, layout: RowLayout) -> CheckResult:
    """Compare log-probabilities of rows that partly share a prompt, in one layout and as full rows."""
    prompt = subject.rows[0][0]
    shared = [(prompt, response) for _, response in subject.rows]
    batch = TokenBatch.from_rows([*shared, *subject.rows[1:]], subject.device)
    if batch.prompt_of is None:
        return CheckResult("pass", "not used", hint="one row, or rows without a prompt, have nothing to share")
    config: Any = _backbone(subject).config
    if not takes_flash_attention(config) and not may_be_masked(config, batch.tokens_BT.shape[1]):
        note = "rows reach the end of a sliding window, or of the range of positions that the rotations support"
        return CheckResult("pass", "not used", hint=f"{note}; they are computed in full")
    with computed_as(layout):
        logps_N = _logps(subject, batch)
    with computed_as("whole rows"):
        expected_N = _logps(subject, batch)
    gap = _largest_gap(logps_N, expected_N)
    hint = "report it with this table; algorithm.micro_batch_tokens=1 trains on one row at a time until then"
    return within(gap, subject.tolerance, "nats", hint)


def batch_invariance(subject: ExaminedModel) -> CheckResult:
    """Compare each row computed alone with the same row in a batch."""
    alone = [_logps(subject, TokenBatch.from_rows([row], subject.device)) for row in subject.rows]
    gap = _largest_gap(torch.cat(alone), _logps(subject, subject.batch))
    hint = "the model mixes the rows of a batch (batch statistics, expert capacity): results depend on the batch size"
    return within(gap, subject.tolerance, "nats", hint)


def padding_invariance(subject: ExaminedModel) -> CheckResult:
    """Check that more padding on the right, of zeros or of EOS, changes nothing."""
    batch = subject.batch
    expected = _logps(subject, batch)
    gaps = []
    # The usual padding tokens: 0, and EOS for tokenizers without a pad token.
    for fill in (0, subject.encoder.eos_id):
        tokens_BT = F.pad(batch.tokens_BT, (0, PADDING), value=fill)
        padded = dataclasses.replace(batch, tokens_BT=tokens_BT)
        gaps.append(_largest_gap(_logps(subject, padded), expected))
    hint = "padding on the right reaches real tokens: the model is not causal"
    return within(max(gaps), subject.tolerance, "nats", hint)


def dropout(subject: ExaminedModel) -> CheckResult:
    """Check that two passes in training mode agree: a log-probability must not depend on the call."""
    modules = subject.model.named_modules()
    active = [name for name, module in modules if isinstance(module, nn.Dropout) and module.p > 0]
    was_training = subject.model.training
    subject.model.train()
    try:
        gap = _largest_gap(_logps(subject, subject.batch), _logps(subject, subject.batch))
    finally:
        subject.model.train(was_training)
    example = f": {active[0]}" if active else ""
    hint = f"dropout is on{example}; set every dropout in the model's config.json to 0"
    measured = f"{len(active)} dropout layers on; two passes differ by {gap:.2g} nats"
    return pass_or_fail(gap == 0 and not active, measured, "none, 0", hint)


def step_zero(subject: ExaminedModel) -> CheckResult:
    """Check that before the first step the policy equals its reference: KL 0, ratio 1."""
    batch = subject.batch
    reference = subject.reference()
    with torch.no_grad():
        policy_N = token_logps(subject.model, batch).logps_N
        reference_N = token_logps(reference, batch).logps_N
        ratio_N = (policy_N - reference_N).exp()
    kl = float(exact_kl(subject.model, reference, batch).abs().max())
    gap = _largest_gap(ratio_N, torch.ones_like(ratio_N))
    hint = "policy and reference differ: an adapter does not start at 0, or weights failed to load"
    measured = f"KL {kl:.2g} nats, |ratio − 1| {gap:.2g}"
    return pass_or_fail(kl <= EXACT and gap <= EXACT, measured, f"≤ {EXACT:g}", hint)


def sampler_ratio(subject: ExaminedModel) -> CheckResult:
    """Compare the sampler's log-probabilities with those that training computes for the same tokens."""
    settings = subject.sampling
    # Two responses per prompt, so that batching within a prompt is covered.
    sampler = LocalSampler(settings, subject.encoder.stop_ids)
    samples = sampler.sample(subject.model, subject.prompts, 2, seed=0)
    groups = zip(samples.prompts, samples.responses_BG, strict=True)
    rows = [(prompt, response) for prompt, responses in groups for response in responses]
    sampled_N = torch.tensor([logp for group in samples.logps_BG for response in group for logp in response])
    batch = TokenBatch.from_rows(rows, subject.device)
    with torch.no_grad():
        trained_N = token_logps(subject.model, batch, temperature=settings.temperature).logps_N.cpu()
    hint = "the sampler does not use the policy that is trained, so ratios do not start at 1: report it with this table"
    gap = _largest_gap((trained_N - sampled_N).exp(), torch.ones_like(trained_N))
    name = "rlhf_lab's decoder" if _has_decoder(subject) else "the model's own forward"
    return within(gap, subject.tolerance, f"({len(trained_N)} tokens, {name})", hint, of="|ratio − 1| at most")


def _has_decoder(subject: ExaminedModel) -> bool:
    """Return True if the sampler has a dedicated decoder for this architecture."""
    positions = max(map(len, subject.prompts)) + subject.sampling.max_new_tokens
    return Decoder.of(subject.model, next(subject.model.parameters()).dtype, positions) is not None


def greedy(subject: ExaminedModel) -> CheckResult:
    """Compare greedy responses of the sampler with Hugging Face's `generate`, up to the first tie."""
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
    equal_tokens = distinct_responses = 0
    with _generation_config(subject.model, greedy_config), torch.no_grad():
        for prompt, (ours,) in zip(subject.prompts, samples.responses_BG, strict=True):
            ids = torch.tensor([prompt], device=subject.device)
            output = subject.model.generate(ids, attention_mask=torch.ones_like(ids))  # type: ignore[operator]
            theirs = output[0, len(prompt) :].tolist()
            pairs = enumerate(zip(ours, theirs, strict=False))
            first_difference = next((t for t, (our, their) in pairs if our != their), None)
            if first_difference is None:
                equal_tokens += len(ours)
                distinct_responses += len(ours) != len(theirs)
                continue
            t = first_difference
            equal_tokens += t
            # After a tie both responses are greedy, so the tokens behind it cannot be compared.
            distinct_responses += not _tied(subject, [*prompt, *ours[:t]], ours[t], theirs[t])
    hint = "the sampler does not compute what the model computes: report it with this table"
    measured = f"{equal_tokens} tokens equal, {distinct_responses} of {len(samples.prompts)} responses differ"
    return pass_or_fail(not distinct_responses, measured, "0", hint)


@contextmanager
def _generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Temporarily replace the model's own generation settings, which may for example penalise repetition."""
    original = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = original


def _tied(subject: ExaminedModel, tokens: list[int], first: int, second: int) -> bool:
    """Return True if two next tokens are equally likely within rounding."""
    ids = torch.tensor([tokens], device=subject.device)
    logits_V = subject.model(input_ids=ids, use_cache=False).logits[0, -1]
    return float((logits_V[first] - logits_V[second]).abs()) <= subject.tolerance


def half_precision(subject: ExaminedModel) -> CheckResult:
    """Measure how much bfloat16 changes log-probabilities, if the config uses it."""
    if "bfloat16" not in (subject.config.runtime.dtype, subject.config.rollout.dtype):
        return CheckResult("skip", "runtime.dtype and rollout.dtype are float32")
    with torch.no_grad(), torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
        half_N = token_logps(subject.model, subject.batch).logps_N
    gap_N = (half_N.double() - _logps(subject, subject.batch).double()).abs()
    mean = float(gap_N.mean()) if bool(gap_N.isfinite().all()) else float("inf")
    measured = f"mean {mean:.2g}, largest {float(gap_N.max()):.2g} nats per token from float32"
    hint = "use runtime.dtype=float32 and rollout.dtype=model"
    return pass_or_fail(mean <= MAX_HALF_GAP, measured, f"mean ≤ {MAX_HALF_GAP:g}", hint)


FORWARD = [
    DoctorCheck("log-probabilities", log_probabilities),
    DoctorCheck("output head", output_head),
    DoctorCheck("shared prompt", shared_prompt),
    DoctorCheck("packed rows", packed_rows),
    DoctorCheck("batch invariance", batch_invariance),
    DoctorCheck("padding invariance", padding_invariance),
    DoctorCheck("dropout off", dropout),
    DoctorCheck("step-0 KL and ratio", step_zero, copies=1),
    DoctorCheck("sampler ratio", sampler_ratio, copies=1),
    DoctorCheck("greedy = generate", greedy, copies=1),
    DoctorCheck("bfloat16 gap", half_precision),
]
