"""Training: accumulated gradients, stored models, resumed runs, processes. The lab's own loop takes every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.supervised.settings import SFT
from rlhf_lab.config.registry import kind_of
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import file_digest
from rlhf_lab.doctor.findings import Check, Finding, found
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.models.build import load_encoder, load_policy, save_model
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.lora import merged
from rlhf_lab.stages.launch.processes import check_launch, wanted
from rlhf_lab.training import checkpoint
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch, train
from rlhf_lab.training.run import Result

LR = 1e-4
GRADIENT = 1e-4
"""Relative difference of gradients that were added up in another order, float32."""
ON_GPU = 1e-5
"""Difference of parameters after two steps where kernels add in no fixed order; on a CPU it is 0."""


class _Halt(Exception):
    """Ends a run between two steps, as a kill would."""


class _Imitation(Algorithm):
    """SFT on a few rows: the smallest thing the loop can train.

    Args:
        steps: for each step the rows of each forward pass.
        halt_before: step at which the process "dies"; None for never.
        gradients: filled with the gradients of each step, which is then not made; None to make the steps.
    """

    def __init__(
        self,
        model: nn.Module,
        encoder: Encoder,
        steps: Sequence[Sequence[Sequence[Row]]],
        device: str,
        *,
        halt_before: int | None = None,
        gradients: dict[str, Tensor] | None = None,
    ):
        self.settings = SFT(optimizer="adamw", lr=LR, warmup_fraction=0.0, max_grad_norm=1e9, log_every_steps=1)
        self.model, self.encoder, self.total_steps = model, encoder, len(steps)
        self.steps, self.device, self.halt_before, self.gradients = steps, device, halt_before, gradients
        self.taken: list[int] = []

    def collect(self, step: int) -> StepBatch:
        if step == self.halt_before:
            raise _Halt
        self.taken.append(step)
        parts = [TokenBatch.from_rows(part, self.device) for part in self.steps[step]]
        return StepBatch(parts, units=sum(len(reply) for part in self.steps[step] for _, reply in part))

    def loss(self, micro: TokenBatch) -> LossOutput:
        return LossOutput(-token_logps(self.model, micro).logps_N)

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        del outputs
        if self.gradients is None:
            return True
        named = self.model.named_parameters()
        self.gradients |= {name: p.grad.detach().clone() for name, p in named if p.grad is not None}
        return False

    def finish(self) -> Result:
        return Result()


def accumulation(subject: Subject) -> Finding:
    """The gradient of all rows in one pass against the same rows one at a time."""
    rows = subject.rows
    whole: dict[str, Tensor] = {}
    one: dict[str, Tensor] = {}
    for parts, gradients in (([rows], whole), ([[row] for row in rows], one)):
        work = _Imitation(subject.model, subject.encoder, [parts], subject.device, gradients=gradients)
        train(work, subject.training_run("accumulation"), "one pass" if gradients is whole else "row by row")
    gap, worst = _relative_gap(whole, one)
    advice = f"largest in {worst}: the loss is averaged per pass, or rows of a batch influence each other"
    return found(gap <= GRADIENT, f"{len(rows)} rows: |Δ gradient| / |gradient| {gap:.2g}", f"≤ {GRADIENT:g}", advice)


def _relative_gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, str]:
    """‖a − b‖/‖a‖ over all tensors, and the name of the one that differs most."""
    if a.keys() != b.keys() or not a:
        return float("inf"), "a parameter with a gradient in one of them only"
    gaps = {name: float((a[name] - b[name]).double().norm()) for name in a}
    size = sum(float(value.double().norm()) ** 2 for value in a.values()) ** 0.5
    total = sum(gap**2 for gap in gaps.values()) ** 0.5
    return (total / size if size > 0 else float("inf")), max(gaps, key=lambda name: gaps[name])


@torch.no_grad()
def save_load(subject: Subject) -> Finding:
    """Stored, loaded and stored again: the same log-probabilities, tokens and bytes."""
    expected = token_logps(merged(subject.model), subject.batch).logps_N
    settings = subject.config.model
    model, encoder = load_policy(subject.saved, settings, device=subject.device), load_encoder(subject.saved, settings)
    gap = float((token_logps(model, subject.batch).logps_N - expected).abs().max())
    again = subject.folder / "again"
    save_model(model, encoder, again)
    weights = _digests(subject.saved), _digests(again)
    tokens = all(
        encoder.row(p.prompt, p.chosen, 64) == subject.encoder.row(p.prompt, p.chosen, 64) for p in subject.pairs
    )
    same = "equal" if weights[0] == weights[1] else "different"
    measured = f"log-probabilities differ by {gap:.2g} nats, bytes {same}, tokens {'equal' if tokens else 'different'}"
    advice = (
        "a stored policy is not the one that was trained: a buffer that is not saved, weights tied in one place only"
    )
    return found(gap == 0 and weights[0] == weights[1] and tokens, measured, "0, equal, equal", advice)


def _digests(folder: Path) -> dict[str, str]:
    """Weight file → SHA-256."""
    return {path.name: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}


def resume(subject: Subject) -> Finding:
    """Two steps in one go against one step, a stop, and one step from the checkpoint."""
    steps = [[subject.rows[:2]], [subject.rows[2:] or subject.rows]]
    before, _ = _trained(subject, steps, "start", halt_before=0)
    whole, _ = _trained(subject, steps, "whole")
    _, first = _trained(subject, steps, "parts", halt_before=1)
    parts, second = _trained(subject, steps, "parts")
    moved, gap = _furthest(whole, before), _furthest(whole, parts)
    limit = 0.0 if torch.device(subject.device).type == "cpu" else ON_GPU
    measured = f"parameters differ by {gap:.2g} after moving by {moved:.2g}"
    if (first, second) != ([0], [1]):
        return found(False, f"took steps {first}, then {second}", "[0], then [1]", "the checkpoint is not gone on from")
    if moved == 0:
        return found(False, measured, "moved", "two steps change nothing: no parameter that the loss reads is trained")
    return found(gap <= limit, measured, f"≤ {limit:g}", "a resumed run would end elsewhere: report it with this table")


def _trained(
    subject: Subject, steps: Sequence[Sequence[Sequence[Row]]], name: str, *, halt_before: int | None = None
) -> tuple[dict[str, Tensor], list[int]]:
    """Train a fresh copy, from the checkpoint of run `name` where it has one: (trained parameters, steps taken)."""
    run = subject.training_run(name)
    run.checkpoint, problem = checkpoint.load(run.folder)
    if problem:
        raise ArtifactError(problem)
    work = _Imitation(subject.fresh(), subject.encoder, steps, subject.device, halt_before=halt_before)
    with suppress(_Halt):
        train(work, run, f"resume: {name}")
    return {name: p.detach().cpu() for name, p in work.model.named_parameters() if p.requires_grad}, work.taken


def _furthest(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max((float((a[name] - b[name]).abs().max()) for name in a), default=0.0)


def processes(subject: Subject) -> Finding:
    """How many processes would train, and whether this machine and its launcher have them."""
    kind = kind_of("sharding", subject.config.sharding)
    if kind == "none" and ranks.launched() == 1:
        return Finding("skip", "sharding=none: one process")
    try:
        check_launch(subject.config)
        count = wanted(subject.config)
    except ConfigError as error:
        return found(False, f"sharding={kind}", "processes that can be had", str(error))
    gpus = torch.cuda.device_count()
    return found(True, f"sharding={kind}: {count} processes on this machine, {gpus} GPUs")


TRAINING = [
    Check("accumulation", accumulation, copies=3),
    Check("save and load", save_load, copies=2),
    Check("resume", resume, copies=10),
    Check("processes", processes),
]
