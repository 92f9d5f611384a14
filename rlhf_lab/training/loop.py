"""The training loop of every algorithm: plain calls in visible order.

An algorithm says how a step's samples are made (`collect`) and what each of them costs (`loss`, unreduced). The loop
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.console import progress
from rlhf_lab.core.signals import handled
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.training import checkpoint
from rlhf_lab.training.optim import Part, lr_scale
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.settings import TrainingSettings
from rlhf_lab.training.totals import LossOutput, Totals, note_cost, note_held


@dataclass
class StepBatch:
    """Everything one optimiser step trains on.

    Attributes:
        micro: forward passes; what is in them is the algorithm's business. Without any, no update is made.
        units: tokens or pairs in all of them: the step's loss is the sum over units divided by this.
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

    settings: Any
    model: nn.Module
    encoder: Encoder
    total_steps: int

    def parts(self) -> dict[str, Part]:
        """Everything that is trained; more than the model where a critic is."""
        muon = self.settings.optimizer == "muon"
        return {"model": Part(self.model, self.settings.lr, self.settings.muon_lr if muon else None)}

    def begin(self) -> None:
        """Find what has to be known before the first step, with the models as they are trained: placed and divided."""
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
        """What a micro-batch runs: processes that divide models run the same at the same time."""
        return type(micro).__name__

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        """Whether the step whose gradients are there is to be made.

        Args:
            outputs: of this process's micro-batches of the step.
        """
        del outputs
        return True

    @property
    def ended(self) -> bool:
        """Whether training is over before its last step."""
        return False

    def due(self, step: int) -> bool:
        """Whether `evaluate` runs after this step."""
        every = self.settings.eval_every_steps
        return bool(every) and (step + 1) % every == 0

    def evaluate(self, step: int) -> None:
        """Log how things stand after this step."""
        del step

    def state_dict(self) -> dict[str, Any]:
        """What `collect` needs besides the step number; tensors and plain values only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        del state

    def save_extra(self, folder: Path) -> None:
        """Files that belong beside the model's own."""
        del folder


class Interrupted(BaseException):
    """The process was told to stop; the stage has been saved."""


def train(algorithm: Algorithm, run: Run, name: str) -> None:
    """Run the algorithm's remaining steps. Resumes from the stage's checkpoint when there is one."""
    engine = registry.build("sharding", run.config.sharding, algorithm, run)
    try:
        _train(algorithm, engine, run, name)
    finally:
        engine.close()


def _train(algorithm: Algorithm, engine: Any, run: Run, name: str) -> None:
    settings = algorithm.settings
    algorithm.begin()
    totals, durations = Totals(), []
    first = _resume(algorithm, engine, run, totals)
    every = run.config.checkpoint.every_steps
    with progress(name, algorithm.total_steps, first) as ticker, _graceful_stop() as stop:
        for step in range(first, algorithm.total_steps):
            begin = time.monotonic()
            batch = algorithm.collect(step)
            outputs = _gradients(algorithm, engine, run, batch, totals)
            scale = _schedule(step, algorithm.total_steps, settings)
            if batch.micro:
                totals.norms = engine.clip()
                totals.steps += 1
                note_held(run, engine)
                if algorithm.accept_step(outputs):
                    engine.step(scale)
                else:
                    engine.skip()
                note_held(run, engine)
            durations.append(time.monotonic() - begin)
            last, due = algorithm.ended or step + 1 == algorithm.total_steps, algorithm.due(step)
            stopping = ranks.any_of(stop.is_set())
            if last or due or (step + 1) % settings.log_every_steps == 0:
                totals.flush(run, step + 1, scale)
            if due:
                algorithm.evaluate(step)
            ticker.advance(note=totals.note)
            if stopping or (every and (last or due or (step + 1) % every == 0)):
                _save(step + 1, algorithm, engine, run, totals)
            if stopping:
                raise Interrupted(f"stopped after step {step + 1} of {algorithm.total_steps}")
            if algorithm.ended:
                break
    note_cost(run, durations)


def _gradients(algorithm: Algorithm, engine: Any, run: Run, batch: StepBatch, totals: Totals) -> list[LossOutput]:
    """Forward and backward passes of this process's micro-batches; returns what they gave, detached."""
    programs = [list(micros) for _, micros in itertools.groupby(batch.micro, key=algorithm.program)]
    passes = [dealt for micros in programs for dealt in ranks.deal(micros)]
    outputs = []
    for index, (micro, mine) in enumerate(passes):
        with run.autocast():
            out = engine.loss(micro, last=index + 1 == len(passes))
        share = out.loss_N.sum() / batch.units
        # every library averages gradients over processes, and the loss is a sum over them
        engine.backward(share * (ranks.world() if mine else 0))
        if mine:
            outputs.append(out.detached())
            totals.add(outputs[-1], share.detach())
    return outputs


def _schedule(step: int, total: int, settings: TrainingSettings) -> float:
    return lr_scale(step, total, warmup_fraction=settings.warmup_fraction, final_fraction=settings.final_lr_fraction)


def _save(step: int, algorithm: Algorithm, engine: Any, run: Run, totals: Totals) -> None:
    counted = totals.state_dict(step)
    state = {"step": step, "algorithm": algorithm.state_dict(), "totals": counted, "log_size": run.log_size()}
    checkpoint.save(run.folder, state, engine.tensors())


def _resume(algorithm: Algorithm, engine: Any, run: Run, totals: Totals) -> int:
    """Restore the checkpoint; returns the first step to take."""
    state, run.checkpoint = run.checkpoint, None
    if state is None:
        return 0
    engine.load(checkpoint.Saved(run.folder, state))
    algorithm.load_state_dict(state["algorithm"])
    totals.load_state_dict(state["totals"])
    run.rewind_log(state["log_size"])
    return int(state["step"])


@contextmanager
def _graceful_stop() -> Iterator[threading.Event]:
    """SIGTERM, SIGUSR1 and SIGUSR2 end the run after the current step, saved. Ctrl-C too; a second one ends it now.

    The other signals may come more than once: from a launcher to its child and from Slurm to every process.
    """
    stop = threading.Event()

    def handle(number: int, _frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    with handled(handle):
        yield stop
