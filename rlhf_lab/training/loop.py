"""The training loop of every algorithm: plain calls in visible order.

An algorithm makes the samples of a step (`collect`) and computes the loss of each of them (`loss`, unreduced). The loop
owns the rest: one normaliser over all micro-batches of a step, clipping, the schedule, logging, evaluation,
checkpoints.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import DeviceMemoryError
from rlhf_lab.core.signals import handled
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.training import checkpoint
from rlhf_lab.training.optim import Part, lr_scale
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.settings import TrainingSettings
from rlhf_lab.training.totals import HoldsState, LossOutput, Totals, record_cost, record_memory

MOST_TOKENS = 2**17
"""Tokens of a micro-batch from which halving begins where a whole batch was one micro-batch."""


@dataclass
class StepBatch:
    """Everything one optimiser step trains on.

    Attributes:
        micro: micro-batches, one forward pass each, of any type that the algorithm's `loss` takes. If there are none,
            no update is made.
        units: tokens or pairs in all micro-batches: the step's loss is the sum over units divided by this.
    """

    micro: list[Any]
    units: int


class Algorithm(ABC):
    """What the loop trains. See `algorithms/supervised/sft.py` for the smallest one.

    Attributes:
        settings: the algorithm's dataclass.
        model: what is trained; saved with `encoder` when the stage is done.
        total_steps: optimiser steps.
    """

    settings: TrainingSettings
    model: nn.Module
    encoder: Encoder
    total_steps: int

    def parts(self) -> dict[str, Part]:
        """The modules to train, by name. PPO, for example, trains a critic beside the model."""
        muon_lr = self.settings.muon_lr if self.settings.optimizer == "muon" else None
        return {"model": Part(self.model, self.settings.lr, muon_lr)}

    def begin(self) -> None:
        """Compute what has to be known before the first step; the models are placed and divided by then."""
        return

    @abstractmethod
    def collect(self, step: int) -> StepBatch:
        """The step's samples. A function of the step and of `state_dict`, so a resumed run sees the same ones."""

    @abstractmethod
    def loss(self, micro: Any) -> LossOutput:
        """Loss of each token or pair of one micro-batch."""

    @abstractmethod
    def finish(self) -> Result:
        """Final evaluation."""

    def frozen(self) -> list[nn.Module]:
        """Models that are used and not trained, such as a reference."""
        return []

    def program(self, micro: Any) -> Hashable:
        """The kind of forward pass a micro-batch needs. Processes that divide a model run the same kind at a time."""
        return type(micro).__name__

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        """Whether to apply the gradients that have just been computed; if not, they are dropped.

        Args:
            outputs: losses and metrics of this process's micro-batches of the step.
        """
        del outputs
        return True

    @property
    def ended(self) -> bool:
        """Whether training is over before its last step."""
        return False

    @property
    def pause(self) -> str:
        """Why the stage is to be saved and ended before it learns from the step's samples; empty where it goes on.

        The same in all processes that share a step.
        """
        return ""

    def due(self, step: int) -> bool:
        """Whether `evaluate` runs after this step."""
        every = self.settings.eval_every_steps
        return bool(every) and (step + 1) % every == 0

    def evaluate(self, step: int) -> None:
        """Measure the model after this step and log the result."""
        del step

    def halve_micro_batches(self, widest: int) -> int | None:
        """Let `collect` cut steps into micro-batches of half as many tokens; None where they are of one token already.

        `collect` gives the same samples when it is called once more for a step.

        Args:
            widest: padded tokens of the largest micro-batch that did not fit; 0 where that is not known.
        """
        tokens = min(self.settings.micro_batch_tokens or MOST_TOKENS, widest or MOST_TOKENS) // 2
        if not tokens:
            return None
        self.settings = replace(self.settings, micro_batch_tokens=tokens)
        return tokens

    def state_dict(self) -> dict[str, Any]:
        """What `collect` needs besides the step number; tensors and plain values only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        del state

    def close(self) -> None:
        """Give up what is under way beside training, which has ended, perhaps with an error."""
        return

    def save_extra(self, folder: Path) -> None:
        """Write the algorithm's own files beside those of the model."""
        del folder


class StepEngine(HoldsState, Protocol):
    """What computes a step; `training.sharding.engine.Engine` says what each method does."""

    def loss(self, micro: Any, *, last: bool) -> LossOutput: ...

    def backward(self, loss_share: Tensor) -> None: ...

    def clip(self) -> dict[str, Tensor]: ...

    def step(self, scale: float) -> None: ...

    def skip(self) -> None: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, saved: checkpoint.Saved) -> None: ...

    def close(self) -> None: ...


class Interrupted(BaseException):
    """The process was told to stop; the stage has been saved.

    No error but a request, so it is no `Exception`: handlers of errors let it pass, like KeyboardInterrupt.
    """


class Paused(Interrupted):
    """The monitor asked for a person; the stage has been saved and goes on with alerts.continue_paused=true."""


def train(algorithm: Algorithm, run: Run, name: str) -> None:
    """Run the algorithm's remaining steps. Resumes from the stage's checkpoint when there is one."""
    engine: StepEngine = registry.build("sharding", run.config.sharding, algorithm, run)
    try:
        _train(algorithm, engine, run, name)
    finally:
        algorithm.close()
        engine.close()


def _train(algorithm: Algorithm, engine: StepEngine, run: Run, name: str) -> None:
    settings = algorithm.settings
    algorithm.begin()
    totals = Totals()
    step_seconds: list[float] = []
    first_step = _resume(algorithm, engine, run, totals)
    save_every = run.config.checkpoint.every_steps
    writer = checkpoint.Writer(run.folder, background=run.config.checkpoints_in_background)
    with _written(writer), progress(name, algorithm.total_steps, first_step) as ticker, _graceful_stop() as stop:
        for step in range(first_step, algorithm.total_steps):
            started = time.monotonic()
            batch = algorithm.collect(step)
            writer.finish_if_written()
            if algorithm.pause:
                # the samples are part of the state: `collect` of this step gives them again
                _save(writer, step, algorithm, engine, run, totals)
                writer.finish()
                raise Paused(algorithm.pause)
            outputs = _gradients(algorithm, engine, run, step, batch, totals)
            scale = _lr_scale(step, algorithm.total_steps, settings)
            if batch.micro:
                totals.norms = engine.clip()
                totals.steps += 1
                # recorded twice: gradients exist only before the update, optimiser moments only after the first one
                record_memory(run, engine)
                if algorithm.accept_step(outputs):
                    engine.step(scale)
                else:
                    engine.skip()
                record_memory(run, engine)
            step_seconds.append(time.monotonic() - started)
            is_last = algorithm.ended or step + 1 == algorithm.total_steps
            evaluates = algorithm.due(step)
            # a signal may have reached some processes only; saving needs all of them, so they agree on it
            stopping = ranks.any_of(stop.is_set())
            if is_last or evaluates or (step + 1) % settings.log_every_steps == 0:
                totals.flush(run, step + 1, scale)
            if evaluates:
                algorithm.evaluate(step)
            ticker.advance(note=totals.note)
            saves = bool(save_every) and (is_last or evaluates or (step + 1) % save_every == 0)
            writer.finish_if_written()
            if stopping or saves:
                _save(writer, step + 1, algorithm, engine, run, totals)
            if stopping:
                writer.finish()
                raise Interrupted(f"stopped after step {step + 1} of {algorithm.total_steps}")
            if algorithm.ended:
                break
    record_cost(run, step_seconds)


def _gradients(
    algorithm: Algorithm, engine: StepEngine, run: Run, step: int, batch: StepBatch, totals: Totals
) -> list[LossOutput]:
    """Gradients of a step, taken again in smaller micro-batches when the device runs out of memory.

    Of several processes each waits for the others within a pass, so that one alone cannot begin again: the error then
    says with which micro-batches all of them may (`processes.train_together`).
    """
    # DeepSpeed keeps what a pass that broke off has left behind
    is_deepspeed = registry.kind_of("sharding", run.config.sharding) == "zero"
    begins_again = ranks.world() == 1 and not is_deepspeed
    counted: list[Counted] | None = None
    while counted is None:
        tokens = None
        try:
            counted = _accumulate_gradients(algorithm, engine, run, batch)
        except torch.OutOfMemoryError as error:
            tokens = algorithm.halve_micro_batches(_widest(batch)) if run.config.fits_itself else None
            if tokens is None or not begins_again:
                advice = "see what would fit: the same command with `plan` in front of the recipe"
                raise DeviceMemoryError(f"the device ran out of memory at step {step + 1}; {advice}", tokens) from error
        if tokens is not None:  # outside the handler: the error holds on to the tensors of the pass that failed
            engine.skip()
            torch.cuda.empty_cache()
            run.note(f"out of memory at step {step + 1}: micro-batches of {tokens} tokens from here on")
            batch = algorithm.collect(step)
    for out, loss_share in counted:
        totals.add(out, loss_share)
    return [out for out, _ in counted]


def _widest(batch: StepBatch) -> int:
    """Padded tokens of the largest micro-batch, 0 where micro-batches do not say."""
    token_batches = [getattr(micro, "batch", micro) for micro in batch.micro]
    return max((tokens.tokens_BT.numel() for tokens in token_batches if hasattr(tokens, "tokens_BT")), default=0)


Counted = tuple[LossOutput, Tensor]
"""A micro-batch's output, detached, and its part of the step's loss."""


def _accumulate_gradients(algorithm: Algorithm, engine: StepEngine, run: Run, batch: StepBatch) -> list[Counted]:
    """Run forward and backward passes of this process's micro-batches."""
    # micro-batches are dealt to the processes program by program, so that all of them run the same one at a time
    programs = [list(micros) for _, micros in itertools.groupby(batch.micro, key=algorithm.program)]
    passes = [dealt for micros in programs for dealt in ranks.deal(micros)]
    counted = []
    for index, (micro, is_counted) in enumerate(passes):
        is_last = index + 1 == len(passes)
        with run.autocast():
            out = engine.loss(micro, last=is_last)
        loss_share = out.loss_N.sum() / batch.units
        # Every library averages gradients over processes, while the step's loss is a sum over them: hence the factor.
        # A pass that is run only because the other processes need this one has weight 0.
        weight = ranks.world() if is_counted else 0
        engine.backward(loss_share * weight)
        if is_counted:
            counted.append((out.detached(), loss_share.detach()))
    return counted


def _lr_scale(step: int, total: int, settings: TrainingSettings) -> float:
    return lr_scale(step, total, warmup_fraction=settings.warmup_fraction, final_fraction=settings.final_lr_fraction)


@contextmanager
def _written(writer: checkpoint.Writer) -> Iterator[None]:
    """When this block ends the last checkpoint is written; after an error without asking the other processes."""
    try:
        yield
        writer.finish()
    finally:
        writer.wait()


def _save(
    writer: checkpoint.Writer, step: int, algorithm: Algorithm, engine: StepEngine, run: Run, totals: Totals
) -> None:
    totals_state = totals.state_dict(step)
    state = {
        "step": step,
        "algorithm": algorithm.state_dict(),
        "totals": totals_state,
        "log_size": run.log_size(),
    }
    writer.save(state, engine.tensors())


def _resume(algorithm: Algorithm, engine: StepEngine, run: Run, totals: Totals) -> int:
    """Restore the checkpoint; returns the first step to take."""
    state = run.checkpoint
    run.checkpoint = None  # no reference may keep the loaded tensors in memory while the stage trains
    if state is None:
        return 0
    engine.load(checkpoint.Saved(run.folder, state))
    algorithm.load_state_dict(state["algorithm"])
    totals.load_state_dict(state["totals"])
    return int(state["step"])


@contextmanager
def _graceful_stop() -> Iterator[threading.Event]:
    """In this block SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C set the event: the run saves and ends after the current step.

    A second Ctrl-C ends it at once. The other signals may come more than once without anyone insisting: from a
    launcher to its child and from Slurm to every process.
    """
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with handled(handle):
        yield stop
