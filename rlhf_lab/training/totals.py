"""Measurements during training: losses and metrics between two logged steps, memory, time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.training.peak_memory import peak_gib
from rlhf_lab.training.run import Run


@dataclass
class LossOutput:
    """Loss of each unit of a micro-batch (differentiable), and metrics whose mean over the units is logged."""

    loss_N: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def detached(self) -> LossOutput:
        """Return the same output without gradients."""
        metrics = {name: value.detach() for name, value in self.metrics.items()}
        return LossOutput(self.loss_N.detach(), metrics)


# A plain tuple because it is stored in checkpoint.pt, which torch reads with weights_only and without other classes.
ProcessTotals = tuple[float, int, dict[str, tuple[float, int]]]
"""Totals of one process: loss, units, and the sum and count of each metric."""


class Totals:
    """Sums over the steps since the last log. They stay tensors, so that each logged step needs only one device sync.

    Each process sums over its own micro-batches; `flush` adds up the processes.
    """

    def __init__(self) -> None:
        # Norms of the last step are kept between logs, unlike the sums.
        self.norms: Mapping[str, Tensor | float] = {}
        self.note = ""
        self._clear()

    def _clear(self) -> None:
        self.loss: Tensor | float = 0.0
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, int] = {}
        self.units = 0
        self.steps = 0

    def add(self, out: LossOutput, loss_weight: Tensor) -> None:
        """Add a micro-batch; `loss_weight` is its part of the step's loss."""
        self.units += len(out.loss_N)
        self.loss = self.loss + loss_weight
        for name, value in out.metrics.items():
            self._add_metric(name, value.float().sum(), value.numel())

    def _add_metric(self, name: str, total: Tensor | float, count: int) -> None:
        self.sums[name] = self.sums[name] + total if name in self.sums else total
        self.counts[name] = self.counts.get(name, 0) + count

    def flush(self, run: Run, step: int, scale: float) -> None:
        """Log the mean loss of the steps and each metric's mean over the units that report it, then reset.

        Raise NumericError if loss or gradient is not finite.
        """
        if not self.steps:
            return
        totals = self._exchange_totals()
        loss = self._mean_loss(totals)
        units = sum(count for _, count, _ in totals)
        norms = {
            "grad_norm" if name == "model" else f"grad_norm/{name}": norm for name, norm in self._float_norms().items()
        }
        run.log(step, loss=loss, **_mean_metrics(totals), lr_scale=scale, **norms, units=units)
        _require_finite(step, loss, norms)
        self.note = f"loss {loss:.3f}"
        self._clear()

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the totals of all processes that are not logged yet. Raise NumericError if one is not finite."""
        totals = self._exchange_totals()
        norms = self._float_norms()
        if self.steps:
            _require_finite(step, self._mean_loss(totals), norms)
        return {"steps": self.steps, "norms": norms, "shares": totals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`. Each process gets its own totals; with another process count they are redistributed."""
        self.steps = int(state["steps"])
        self.norms = dict(state["norms"])
        for loss, units, metrics in ranks.shard(state["shares"]):
            self.loss = self.loss + loss
            self.units = self.units + units
            for name, (total, count) in metrics.items():
                self._add_metric(name, total, count)

    def _exchange_totals(self) -> list[ProcessTotals]:
        """Return the totals of each process as numbers."""
        # `float` is the device sync that the tensors above avoid in other steps.
        metrics = {name: (float(total), self.counts[name]) for name, total in self.sums.items()}
        return ranks.exchange((float(self.loss), self.units, metrics))

    def _mean_loss(self, shares: list[ProcessTotals]) -> float:
        return sum(loss for loss, _, _ in shares) / self.steps

    def _float_norms(self) -> dict[str, float]:
        return {name: float(norm) for name, norm in self.norms.items()}


def _mean_metrics(shares: list[ProcessTotals]) -> dict[str, float]:
    """Return the mean of each metric over the units that report it; some processes may have no such unit."""
    names = dict.fromkeys(name for _, _, metrics in shares for name in metrics)  # distinct, in order of appearance
    means = {}
    for name in names:
        counted = [metrics[name] for _, _, metrics in shares if name in metrics]
        total = sum(total for total, _ in counted)
        count = sum(count for _, count in counted)
        means[name] = total / count
    return means


def _require_finite(step: int, loss: float, norms: dict[str, float]) -> None:
    if not all(map(math.isfinite, (loss, *norms.values()))):
        raise NumericError(
            f"loss {loss} or gradient norm {norms} is not finite at step {step}; "
            "lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
        )


def record_memory(run: Run, measure: Callable[[], Mapping[str, float]]) -> None:
    """Record the memory of parameters, gradients and optimizer state, until one step has shown all three."""
    if run.cost.get("memory/optimizer"):
        return
    for name, mib in measure().items():
        run.cost[name] = max(mib, run.cost.get(name, 0.0))


def record_cost(run: Run, seconds: float, updates: int) -> None:
    """Record peak memory and the mean time of an update; the maximum over all processes counts.

    Args:
        seconds: time of all steps, including those that sample.
        updates: number of steps with an update.
    """
    peak = peak_gib()
    if peak is not None:
        run.cost["memory/peak"] = (peak - run.floor_gib) * 2**10
    if updates:
        run.cost["step_seconds"] = seconds / updates
    costs = ranks.exchange(run.cost)
    maxima = {name: max(cost.get(name, 0.0) for cost in costs) for name in run.cost}
    run.cost = {name: round(value, 4) for name, value in maxima.items()}
