"""Training loop of all algorithms: plain calls in visible order.

An algorithm creates the samples of a step (`collect`) and computes their losses without reduction (`loss`). The loop
does the rest: one normaliser over all micro-batches of a step, clipping, the schedule, logging, evaluation and
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
from rlhf_lab.core.errors import DeviceMemoryError
from rlhf_lab.core.progress import progress
from rlhf_lab.core.signals import handled
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.training import checkpoint
from rlhf_lab.training.optim import TrainedPart, lr_scale
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.settings import TrainingSettings
from rlhf_lab.training.totals import LossOutput, Totals, record_cost, record_memory

MOST_TOKENS = 2**17
"""Initial token limit when an unsplit batch runs out of memory: micro-batches are first split to half of it."""


@dataclass
class StepBatch:
    """Training data of one optimiser step.

    Attributes:
        micro: micro-batches, one forward pass each, of any type that the algorithm's `loss` accepts. If there are none,
            the loop makes no update.
        units: number of tokens or pairs in all micro-batches. The loss of the step is the sum over units divided by
            this.
    """

    micro: list[Any]
    units: int


class Algorithm(ABC):
    """An algorithm that the loop trains. See `algorithms/supervised/sft.py` for the smallest one.

    Attributes:
        settings: settings of the algorithm.
        model: trained model; saved with `encoder` when the stage is done.
        encoder: tokenizer of the model.
        total_steps: number of optimiser steps.
    """

    settings: TrainingSettings
    model: nn.Module
    encoder: Encoder
    total_steps: int

    def parts(self) -> dict[str, TrainedPart]:
        """Return the modules to train, by name. PPO, for example, trains a critic in addition to the model."""
        muon_lr = self.settings.muon_lr if self.settings.optimizer == "muon" else None
        return {"model": TrainedPart(self.model, self.settings.lr, muon_lr)}

    def start(self) -> None:
        """Compute what is needed before the first step. The models are already on their devices and sharded."""
        return

    @abstractmethod
    def collect(self, step: int) -> StepBatch:
        """Return the step's samples. Depends only on step and `state_dict`, so a resumed run gets the same samples."""

    @abstractmethod
    def loss(self, micro: Any) -> LossOutput:
        """Return the loss of each token or pair of one micro-batch."""

    @abstractmethod
    def finish(self) -> Result:
        """Run the final evaluation."""

    def frozen_modules(self) -> list[nn.Module]:
        """Return models that are used but not trained, such as a reference."""
        return []

    def program(self, micro: Any) -> Hashable:
        """Return the kind of forward pass of a micro-batch. Processes that shard a model run the same kind together."""
        return type(micro).__name__

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        """Return True to apply the gradients of this step, False to drop them.

        Args:
            outputs: losses and metrics of this process's micro-batches of the step.
        """
        del outputs
        return True

    @property
    def finished(self) -> bool:
        """True if training ends before its last step."""
        return False

    @property
    def pause(self) -> str:
        """Reason to save and stop the stage before it trains on the step's samples; empty to continue.

        It is the same in all processes of a step.
        """
        return ""

    def evaluation_due(self, step: int) -> bool:
        """Return True if `evaluate` runs after this step."""
        every = self.settings.eval_every_steps
        if not every:
            return False
        done = step + 1
        is_power_of_two = done & (done - 1) == 0
        early = self.settings.eval_early and done < every and is_power_of_two
        return early or done % every == 0

    def evaluate(self, step: int) -> None:
        """Measure the model after this step and log the result."""
        del step

    def halve_micro_batches(self, widest: int) -> int | None:
        """Make `collect` split steps into micro-batches of half as many tokens; return None if they have one token.

        `collect` returns the same samples if it is called again for a step.

        Args:
            widest: padded tokens of the largest micro-batch that did not fit; 0 if unknown.

        Returns:
            The new `micro_batch_tokens`.
        """
        tokens = min(self.settings.micro_batch_tokens or MOST_TOKENS, widest or MOST_TOKENS) // 2
        if not tokens:
            return None
        self.settings = replace(self.settings, micro_batch_tokens=tokens)
        return tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what `collect` needs besides the step number; only tensors and JSON-like values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        del state

    def close(self) -> None:
        """Cancel background work after training has finished or failed."""
        return

    def save_extra(self, directory: Path) -> None:
        """Write the algorithm's own files next to those of the model."""
        del directory


class StepEngine(Protocol):
    """An engine that computes a step; `training.sharding.engine.Engine` documents the methods."""

    def loss(self, micro: Any, *, last: bool) -> LossOutput: ...
    def backward(self, loss_weight: Tensor) -> None: ...
    def clip(self) -> dict[str, Tensor]: ...
    def step(self, scale: float) -> None: ...
    def skip(self) -> None: ...
    def memory_mib(self) -> dict[str, float]: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, saved: checkpoint.Saved) -> None: ...
    def close(self) -> None: ...


class Interrupted(BaseException):
    """The process was told to stop, and the stage has been saved.

    This is a request, not an error. It is no `Exception`, so that error handlers let it pass, like KeyboardInterrupt.
    """


class Paused(Interrupted):
    """The monitor paused the stage, so that a person can look at it. alerts.continue_paused=true continues it."""


def train(algorithm: Algorithm, run: Run, name: str) -> None:
    """Run the algorithm's remaining steps. Resume from the stage's checkpoint if it exists."""
    engine: StepEngine = registry.build("sharding", run.config.sharding, algorithm, run)
    try:
        _train(algorithm, engine, run, name)
    finally:
        algorithm.close()
        engine.close()


def _train(algorithm: Algorithm, engine: StepEngine, run: Run, name: str) -> None:
    settings = algorithm.settings
    algorithm.start()
    totals = Totals()
    seconds, updates = 0.0, 0
    first_step = _resume(algorithm, engine, run, totals)
    save_every = run.config.checkpoint.every_steps
    writer = checkpoint.Writer(run.directory, background=run.config.checkpoints_in_background)
    with _written(writer), progress(name, algorithm.total_steps, first_step) as ticker, _graceful_stop(run.stopping):
        for step in range(first_step, algorithm.total_steps):
            started = time.monotonic()
            batch = algorithm.collect(step)
            writer.finish_if_written()
            if algorithm.pause:
                # The samples are part of the saved state, so `collect` returns them again when the stage resumes.
                _save(writer, step, algorithm, engine, run, totals)
                writer.finish()
                raise Paused(algorithm.pause)
            outputs = _gradients(algorithm, engine, run, step, batch, totals)
            scale = lr_scale(
                step,
                algorithm.total_steps,
                warmup_fraction=settings.warmup_fraction,
                final_fraction=settings.final_lr_fraction,
            )
            if batch.micro:
                totals.norms = engine.clip()
                totals.steps += 1
                updates += 1
                # Memory is recorded twice: gradients exist only before the update, optimiser state only after it.
                record_memory(run, engine.memory_mib)
                if algorithm.accept_step(outputs):
                    engine.step(scale)
                else:
                    engine.skip()
                record_memory(run, engine.memory_mib)
            seconds += time.monotonic() - started
            is_last = algorithm.finished or step + 1 == algorithm.total_steps
            evaluates = algorithm.evaluation_due(step)
            # A signal may reach only some processes. Saving needs all of them, so they agree on it here.
            stopping = ranks.any_of(run.stopping.is_set())
            if is_last or evaluates or (step + 1) % settings.log_every_steps == 0:
                totals.flush(run, step + 1, scale)
            if evaluates:
                algorithm.evaluate(step)
            ticker.advance(note=totals.note)
            saves = bool(save_every) and (is_last or evaluates or (step + 1) % save_every == 0)
            # Twice per step: a background checkpoint is committed as soon as possible.
            writer.finish_if_written()
            if stopping or saves:
                _save(writer, step + 1, algorithm, engine, run, totals)
            if stopping:
                writer.finish()
                raise Interrupted(f"stopped after step {step + 1} of {algorithm.total_steps}")
            if algorithm.finished:
                break
    record_cost(run, seconds, updates)


def _gradients(
    algorithm: Algorithm, engine: StepEngine, run: Run, step: int, batch: StepBatch, totals: Totals
) -> list[LossOutput]:
    """Compute the gradients of a step, again in smaller micro-batches if the device runs out of memory.

    With several processes, each waits for the others within a pass, so a single one cannot start again. The error then
    carries the micro-batch size with which all of them may start again (`processes.train_together`).
    """
    # DeepSpeed keeps the state of an interrupted pass, so a step cannot be repeated.
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
                hint = "see what would fit: the same command with `plan` in front of the recipe"
                raise DeviceMemoryError(f"the device ran out of memory at step {step + 1}; {hint}", tokens) from error
        # Outside the handler, because the error holds references to the tensors of the failed pass.
        if tokens is not None:
            engine.skip()
            torch.cuda.empty_cache()
            run.note(f"out of memory at step {step + 1}: micro-batches of {tokens} tokens from here on")
            batch = algorithm.collect(step)
    for out, loss_weight in counted:
        totals.add(out, loss_weight)
    return [out for out, _ in counted]


def _widest(batch: StepBatch) -> int:
    """Return the padded tokens of the largest micro-batch, or 0 if micro-batches have no token batch."""
    token_batches = [getattr(micro, "batch", micro) for micro in batch.micro]
    return max((tokens.tokens_BT.numel() for tokens in token_batches if hasattr(tokens, "tokens_BT")), default=0)


Counted = tuple[LossOutput, Tensor]
"""Output of a micro-batch, detached, and its part of the step's loss."""


def _accumulate_gradients(algorithm: Algorithm, engine: StepEngine, run: Run, batch: StepBatch) -> list[Counted]:
    """Run forward and backward passes of this process's micro-batches."""
    # Micro-batches are dealt to the processes program by program, so that all processes run the same kind of pass.
    programs = [list(micros) for _, micros in itertools.groupby(batch.micro, key=algorithm.program)]
    passes = [dealt for micros in programs for dealt in ranks.deal_round_robin(micros)]
    counted = []
    for index, (micro, is_counted) in enumerate(passes):
        is_last = index + 1 == len(passes)
        with run.autocast():
            out = engine.loss(micro, last=is_last)
        loss_weight = out.loss_N.sum() / batch.units
        # All libraries average gradients over processes, but the loss of a step is a sum over them, hence the factor.
        # A pass that runs only because the other processes need it has weight 0.
        weight = ranks.world() if is_counted else 0
        engine.backward(loss_weight * weight)
        if is_counted:
            counted.append((out.detached(), loss_weight.detach()))
    return counted


@contextmanager
def _written(writer: checkpoint.Writer) -> Iterator[None]:
    """Finish the last checkpoint at the end of this block; after an error without waiting for other processes."""
    try:
        yield
        writer.finish()
    finally:
        writer.wait()


def _save(
    writer: checkpoint.Writer, step: int, algorithm: Algorithm, engine: StepEngine, run: Run, totals: Totals
) -> None:
    totals_state = totals.state_dict(step)
    state = {"step": step, "algorithm": algorithm.state_dict(), "totals": totals_state, "log_size": run.log_size()}
    writer.save(state, engine.tensors())


def _resume(algorithm: Algorithm, engine: StepEngine, run: Run, totals: Totals) -> int:
    """Restore the checkpoint and return the first step to take."""
    state = run.checkpoint
    run.checkpoint = None  # frees the loaded tensors once they are restored
    if state is None:
        return 0
    engine.load(checkpoint.Saved(run.directory, state))
    algorithm.load_state_dict(state["algorithm"])
    totals.load_state_dict(state["totals"])
    return int(state["step"])


@contextmanager
def _graceful_stop(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C in this block: the run saves and stops after this step.

    A second Ctrl-C stops it immediately. Other signals may repeat without urgency: a launcher sends them to its child,
    and Slurm to every process.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with handled(handle):
        yield
