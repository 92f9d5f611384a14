"""What is counted while a stage trains: losses and metrics between two logged steps, memory, time."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.training import peak_memory
from rlhf_lab.training.run import Run


@dataclass
class LossOutput:
    """Loss of each unit of a micro-batch (differentiable) and values to log, each summed over units later."""

    loss_N: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def detached(self) -> LossOutput:
        """The same without gradients."""
        return LossOutput(self.loss_N.detach(), {key: value.detach() for key, value in self.metrics.items()})


Share = tuple[float, int, dict[str, tuple[float, int]]]
"""What one process has counted: loss, units, and the sum and count of each metric."""


class Totals:
    """Sums over the steps since the last log, kept as tensors: one device sync per logged step.

    Each process sums over its own micro-batches; `flush` adds the processes up.
    """

    def __init__(self) -> None:
        self.norms: dict[str, Tensor | float] = {}
        self.note = ""
        self._clear()

    def _clear(self) -> None:
        self.loss: Tensor | float = 0.0
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, int] = {}
        self.units = self.steps = 0

    def add(self, out: LossOutput, share: Tensor) -> None:
        """Count a micro-batch; `share` is its part of the step's loss."""
        self.units += len(out.loss_N)
        self.loss = self.loss + share
        for key, value in out.metrics.items():
            self._count(key, value.float().sum(), value.numel())

    def _count(self, key: str, total: Tensor | float, number: int) -> None:
        self.sums[key] = self.sums[key] + total if key in self.sums else total
        self.counts[key] = self.counts.get(key, 0) + number

    def flush(self, run: Run, step: int, scale: float) -> None:
        """Log the mean loss of the steps and each metric's mean over the units that report it, and forget them.

        Raises NumericError when loss or gradient is not finite.
        """
        if not self.steps:
            return
        everyone, norms = self._everyone(), self._norms()
        units, loss = sum(count for _, count, _ in everyone), self._loss(everyone)
        keys = dict.fromkeys(key for _, _, found in everyone for key in found)
        pairs = {key: [found[key] for _, _, found in everyone if key in found] for key in keys}
        means = {key: sum(total for total, _ in found) / sum(n for _, n in found) for key, found in pairs.items()}
        named = {"grad_norm" if name == "model" else f"grad_norm/{name}": norm for name, norm in norms.items()}
        run.log(step, loss=loss, **means, lr_scale=scale, **named, units=units)
        _require_finite(step, loss, named)
        self.note = f"loss {loss:.3f}"
        self._clear()

    def state_dict(self, step: int) -> dict[str, Any]:
        """What all processes have counted and not logged. Raises NumericError when loss or gradient is not finite."""
        everyone, norms = self._everyone(), self._norms()
        if self.steps:
            _require_finite(step, self._loss(everyone), norms)
        return {"steps": self.steps, "norms": norms, "shares": everyone}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`. As many processes take up their own shares; others are dealt them."""
        self.steps, self.norms = int(state["steps"]), dict(state["norms"])
        for loss, units, found in ranks.share(state["shares"]):
            self.loss, self.units = self.loss + loss, self.units + units
            for key, (total, number) in found.items():
                self._count(key, total, number)

    def _everyone(self) -> list[Share]:
        own = {key: (float(total), self.counts[key]) for key, total in self.sums.items()}
        return ranks.exchange((float(self.loss), self.units, own))

    def _loss(self, everyone: list[Share]) -> float:
        return sum(found for found, _, _ in everyone) / self.steps

    def _norms(self) -> dict[str, float]:
        return {name: float(norm) for name, norm in self.norms.items()}


def _require_finite(step: int, loss: float, norms: dict[str, float]) -> None:
    if not all(map(math.isfinite, (loss, *norms.values()))):
        raise NumericError(
            f"loss {loss} or gradient norm {norms} is not finite at step {step}; "
            "lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
        )


def note_held(run: Run, engine: Any) -> None:
    """Memory by what it holds, in the first step whose gradients and moments are seen."""
    if run.cost.get("memory/optimizer"):
        return
    held = engine.held()
    run.cost |= {key: max(value, run.cost.get(key, 0.0)) for key, value in held.items()}


def note_cost(run: Run, durations: list[float]) -> None:
    """Peak and step time; the largest of all processes."""
    peak = peak_memory.peak_gib()
    if peak is not None:
        run.cost["memory/peak"] = (peak - run.floor_gib) * 2**10
    if durations:
        run.cost["step_seconds"] = statistics.median(durations)
    everyone = ranks.exchange(run.cost)
    run.cost = {key: round(max(cost.get(key, 0.0) for cost in everyone), 4) for key in run.cost}
