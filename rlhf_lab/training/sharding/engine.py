"""How a training step is computed. The training loop sees an `Engine` and nothing of processes.

This one is a single process; the other modules of the package divide the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.models.divided import checkpoint_blocks, keep_in_host_memory
from rlhf_lab.training.checkpoint import Saved, load_trained_state, trained_state
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.optim import Optimizers
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.settings import Single


class Engine:
    """Computes losses and gradients of an algorithm and makes its steps.

    Attributes:
        parts: name → module that is trained.
        keeps_gradients: whether gradients have places of their own; see `Optimizers`.
    """

    keeps_gradients = False

    def __init__(self, settings: Single, algorithm: Algorithm, run: Run):
        self.settings, self.algorithm, self.run = settings, algorithm, run
        parts = algorithm.parts()
        self.parts: dict[str, nn.Module] = {name: part.module for name, part in parts.items()}
        self._undo: list[Callable[[], None]] = []
        if settings.reference == "offload":
            for model in algorithm.frozen():
                keep_in_host_memory(model, run.device)
        self.prepare()
        if settings.checkpointing:
            self._undo += [checkpoint_blocks(module) for module in self.parts.values()]
        self.optimizers = Optimizers(parts, algorithm.settings, keep_gradients=self.keeps_gradients)

    def prepare(self) -> None:
        """Divide or wrap the modules, before their parameters are given to optimisers."""

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        """Loss of a micro-batch; `last` of the step."""
        del last
        return self.algorithm.loss(micro)

    def backward(self, share: Tensor) -> None:
        """Add the gradients of this process's part of the step's loss, which are averaged over all processes."""
        share.backward()

    def clip(self) -> dict[str, Tensor]:
        """Clip the step's gradients; returns the norm of each part before."""
        return self.optimizers.clip()

    def step(self, scale: float) -> None:
        """Make the step at `scale` times the peak learning rates."""
        self.optimizers.step(scale)

    def skip(self) -> None:
        """Forget the step's gradients."""
        self.optimizers.zero_grad()

    def settle(self) -> None:
        """Leave the trained modules' own parameters in place, whatever passes have put there."""

    def held(self) -> dict[str, float]:
        """MiB that this process holds of what it trains; see training/metrics.py."""
        self.settle()
        parameters = [p for module in self.parts.values() for p in module.parameters()]
        found: dict[str, list[Tensor]] = {
            "memory/parameters": [*parameters],
            "memory/gradients": [p.grad for p in parameters if p.grad is not None],
            "memory/optimizer": list(self.optimizers.tensors().values()),
        }
        return {name: sum(map(_bytes, tensors)) / 2**20 for name, tensors in found.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name."""
        self.settle()
        found = {
            f"model/{name}/{key}": t for name, module in self.parts.items() for key, t in trained_state(module).items()
        }
        return found | {f"optimizer/{name}": tensor for name, tensor in self.optimizers.tensors().items()}

    def load(self, saved: Saved) -> None:
        """Inverse of `tensors`. Raises ArtifactError for the shares of DeepSpeed's processes, which fit those alone."""
        for name, counts in saved.shards["rows"].items():
            if name.startswith("zero"):
                raise ArtifactError(
                    f"{saved.folder} holds a checkpoint of {len(counts)} processes of sharding={name.split('/')[0]}, "
                    "which no others can go on from; start as many, or use artifacts.refresh=true to start over"
                )
        self.settle()
        for name, module in self.parts.items():
            load_trained_state(module, saved, f"model/{name}/")
        moments = [name.removeprefix("optimizer/") for name in saved.names() if name.startswith("optimizer/")]
        self.optimizers.load(moments, lambda name, parameter: saved.like(f"optimizer/{name}", parameter))

    def close(self) -> None:
        """Training is over: models are ordinary again, but for parameters that stay divided."""
        for undo in reversed(self._undo):
            undo()


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor, or of the rows of it that this process holds."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
