"""Data parallelism (DDP): every process has the full model and computes part of a step; gradients are summed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rlhf_lab.core import ranks
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import Replicated


class Loss(nn.Module):
    """An algorithm's loss as a forward pass, because DDP only exchanges gradients of a module's forward pass."""

    def __init__(self, algorithm: Algorithm, parts: dict[str, nn.Module]):
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.algorithm = algorithm

    def forward(self, micro: Any) -> LossOutput:
        return self.algorithm.loss(micro)


class DataParallel(Engine):
    """DDP with one gradient exchange per step if every pass uses every parameter, else one per pass.

    A critic, for example, has passes that do not use the policy. DDP then searches each pass for unused parameters.
    """

    def prepare(self) -> None:
        self.has_several_parts = len(self.parts) > 1
        self.ddp: nn.Module | None = None
        if ranks.world() == 1:
            return
        self.ddp = DistributedDataParallel(
            Loss(self.algorithm, self.parts),
            find_unused_parameters=self.has_several_parts,
            gradient_as_bucket_view=True,
        )
        # If gradients were freed after a step, passes without an exchange would allocate new ones next to DDP's
        # buckets, 4 bytes per parameter. Therefore they stay views of the buckets and are set to 0.
        self.keeps_gradients = not self.has_several_parts

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        if self.ddp is None:
            return super().loss(micro, last=last)
        exchanges = last or self.has_several_parts
        with nullcontext() if exchanges else self.ddp.no_sync():  # type: ignore[operator]
            return self.ddp(micro)


def build(settings: Replicated, algorithm: Algorithm, run: Run) -> DataParallel:
    return DataParallel(settings, algorithm, run)
