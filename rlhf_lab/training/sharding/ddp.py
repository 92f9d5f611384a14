"""Data parallel: every process holds everything and computes its share of a step; gradients are added up (DDP)."""

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
    """An algorithm's loss as the forward pass of what it trains."""

    def __init__(self, algorithm: Algorithm, parts: dict[str, nn.Module]):
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.algorithm = algorithm

    def forward(self, micro: Any) -> LossOutput:
        return self.algorithm.loss(micro)


class DataParallel(Engine):
    """Gradients are exchanged once a step where every pass uses every parameter, else after every pass."""

    def prepare(self) -> None:
        self.several = len(self.parts) > 1
        self.wrapped: nn.Module | None = None
        if ranks.world() > 1:
            self.wrapped = DistributedDataParallel(
                Loss(self.algorithm, self.parts), find_unused_parameters=self.several, gradient_as_bucket_view=True
            )
            self.keeps_gradients = not self.several  # else passes without an exchange make gradients beside the buckets

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        if self.wrapped is None:
            return super().loss(micro, last=last)
        with nullcontext() if last or self.several else self.wrapped.no_sync():  # type: ignore[operator]
            return self.wrapped(micro)


def build(settings: Replicated, algorithm: Algorithm, run: Run) -> DataParallel:
    return DataParallel(settings, algorithm, run)
