"""Checks of training: accumulated gradients, stored models, resumed runs, processes. All use rlhf_lab's own loop."""

from __future__ import annotations

import math
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
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail
from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.models.build import load_encoder, load_policy, save_model
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.lora import merged
from rlhf_lab.stages.launch.processes import check_launch, requested_processes
from rlhf_lab.training import checkpoint
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch, train
from rlhf_lab.training.run import Result

LR = 1e-4
"""Learning rate of the training steps in these checks."""
MAX_GRADIENT_GAP = 1e-4
"""Maximum relative difference between gradients that were summed in another order, in float32."""
MAX_GPU_GAP = 1e-5
"""Maximum difference of parameters after two steps on a GPU, whose kernels sum in no fixed order; on a CPU it is 0."""


class _Halt(Exception):
    """Raised to stop a run between two steps, as a kill would."""


class _TinySFT(Algorithm):
    """SFT on a few rows: the smallest algorithm that the loop can train.

    Args:
        steps: rows of each micro-batch, for each step.
        halt_before: step before which the run stops as if killed; None for never.
        gradients: dict that receives the gradients of each step, whose update is then skipped; None applies updates.
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
        self.model = model
        self.encoder = encoder
        self.total_steps = len(steps)
        self.steps = steps
        self.device = device
        self.halt_before = halt_before
        self.gradients = gradients
        self.taken: list[int] = []

    def collect(self, step: int) -> StepBatch:
        # Raised before the step is recorded, so that `taken` lists only steps that were completed.
        if step == self.halt_before:
            raise _Halt
        self.taken.append(step)
        micro_batches = [TokenBatch.from_rows(rows, self.device) for rows in self.steps[step]]
        return StepBatch(micro_batches, units=sum(len(response) for rows in self.steps[step] for _, response in rows))

    def loss(self, micro: TokenBatch) -> LossOutput:
        return LossOutput(-token_logps(self.model, micro).logps_N)

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        # Returning False makes the loop skip the update; the gradients have been computed by then.
        del outputs
        if self.gradients is None:
            return True
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.gradients[name] = parameter.grad.detach().clone()
        return False

    def finish(self) -> Result:
        return Result()


def accumulation(subject: ExaminedModel) -> CheckResult:
    """Compare the gradient of all rows in one pass with that of the same rows one at a time."""
    rows = subject.rows
    one_pass: dict[str, Tensor] = {}
    row_by_row: dict[str, Tensor] = {}
    cases = (("one pass", [rows], one_pass), ("row by row", [[row] for row in rows], row_by_row))
    for name, micro_batches, gradients in cases:
        algorithm = _TinySFT(subject.model, subject.encoder, [micro_batches], subject.device, gradients=gradients)
        train(algorithm, subject.training_run("accumulation"), name)
    gap, worst = _relative_gap(one_pass, row_by_row)
    hint = f"largest in {worst}: the loss is averaged per pass, or rows of a batch influence each other"
    return pass_or_fail(
        gap <= MAX_GRADIENT_GAP,
        f"{len(rows)} rows: |Δ gradient| / |gradient| {gap:.2g}",
        f"≤ {MAX_GRADIENT_GAP:g}",
        hint,
    )


def _relative_gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return ‖a − b‖/‖a‖ over all tensors, and the name of the tensor with the largest difference."""
    if a.keys() != b.keys() or not a:
        return float("inf"), "a parameter that has a gradient in only one of them"
    gaps = {name: float((a[name] - b[name]).double().norm()) for name in a}
    norm = math.hypot(*(float(tensor.double().norm()) for tensor in a.values()))
    relative = math.hypot(*gaps.values()) / norm if norm > 0 else math.inf
    return relative, max(gaps, key=lambda name: gaps[name])


@torch.no_grad()
def save_load(subject: ExaminedModel) -> CheckResult:
    """Check that a model that is stored, loaded and stored again keeps its log-probabilities, tokens and bytes."""
    # A stored model has its adapter merged, so compare with the merged model.
    expected = token_logps(merged(subject.model), subject.batch).logps_N
    settings = subject.config.model
    model = load_policy(subject.saved, settings, device=subject.device)
    encoder = load_encoder(subject.saved, settings)
    gap = float((token_logps(model, subject.batch).logps_N - expected).abs().max())
    saved_again = subject.directory / "again"
    save_model(model, encoder, saved_again)
    same_bytes = _weight_digests(subject.saved) == _weight_digests(saved_again)
    same_tokens = all(
        encoder.row(pair.prompt, pair.chosen, 64) == subject.encoder.row(pair.prompt, pair.chosen, 64)
        for pair in subject.pairs
    )
    bytes_text, tokens_text = ("equal" if same else "different" for same in (same_bytes, same_tokens))
    measured = f"log-probabilities differ by {gap:.2g} nats, bytes {bytes_text}, tokens {tokens_text}"
    hint = (
        "the stored policy differs from the trained one: a buffer is not saved, or weights are tied in one place only"
    )
    return pass_or_fail(gap == 0 and same_bytes and same_tokens, measured, "0, equal, equal", hint)


def _weight_digests(directory: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(directory.glob("*.safetensors"))}


def resume(subject: ExaminedModel) -> CheckResult:
    """Compare two steps without a stop with one step, a stop, and one step from the checkpoint."""
    steps = [[subject.rows[:2]], [subject.rows[2:] or subject.rows]]
    # A run that stops before step 0 returns the initial parameters.
    initial, _ = _train_copy(subject, steps, "start", halt_before=0)
    uninterrupted, _ = _train_copy(subject, steps, "whole")
    _, steps_before_stop = _train_copy(subject, steps, "parts", halt_before=1)
    resumed, steps_after_stop = _train_copy(subject, steps, "parts")
    moved = _largest_difference(uninterrupted, initial)
    gap = _largest_difference(uninterrupted, resumed)
    limit = 0.0 if torch.device(subject.device).type == "cpu" else MAX_GPU_GAP
    measured = f"parameters differ by {gap:.2g} after moving by {moved:.2g}"
    if (steps_before_stop, steps_after_stop) != ([0], [1]):
        taken = f"took steps {steps_before_stop}, then {steps_after_stop}"
        return pass_or_fail(False, taken, "[0], then [1]", "the run does not continue from the checkpoint")
    if moved == 0:
        return pass_or_fail(
            False, measured, "moved", "two steps change nothing: no parameter that the loss depends on is trained"
        )
    return pass_or_fail(
        gap <= limit, measured, f"≤ {limit:g}", "a resumed run would give another result: report it with this table"
    )


def _train_copy(
    subject: ExaminedModel, steps: Sequence[Sequence[Sequence[Row]]], name: str, *, halt_before: int | None = None
) -> tuple[dict[str, Tensor], list[int]]:
    """Train a fresh copy, from the checkpoint of run `name` if there is one. Return (parameters, steps taken)."""
    run = subject.training_run(name)
    run.checkpoint, problem = checkpoint.load(run.directory)
    if problem:
        raise ArtifactError(problem)
    # A fresh copy, so that the only state shared between two runs is the checkpoint.
    algorithm = _TinySFT(subject.load_fresh_copy(), subject.encoder, steps, subject.device, halt_before=halt_before)
    with suppress(_Halt):
        train(algorithm, run, f"resume: {name}")
    named = algorithm.model.named_parameters()
    trained = {name: parameter.detach().cpu() for name, parameter in named if parameter.requires_grad}
    return trained, algorithm.taken


def _largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max((float((a[name] - b[name]).abs().max()) for name in a), default=0.0)


def processes(subject: ExaminedModel) -> CheckResult:
    """Check that this machine and its launcher can provide the processes that would train."""
    kind = kind_of("sharding", subject.config.sharding)
    if kind == "none" and ranks.launched() == 1:
        return CheckResult("skip", "sharding=none: one process")
    try:
        check_launch(subject.config)
        count = requested_processes(subject.config)
    except ConfigError as error:
        return pass_or_fail(False, f"sharding={kind}", "processes that can be started", str(error))
    gpus = torch.cuda.device_count()
    return pass_or_fail(True, f"sharding={kind}: {count} processes on this machine, {gpus} GPUs")


TRAINING = [
    DoctorCheck("accumulation", accumulation, copies=3),
    DoctorCheck("save and load", save_load, copies=2),
    DoctorCheck("resume", resume, copies=10),
    DoctorCheck("processes", processes),
]
