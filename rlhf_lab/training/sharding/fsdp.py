"""Fully sharded: parameters, gradients and optimiser state divided between the processes, block by block (FSDP2).

In bfloat16 the gathered parameters and the arithmetic are bfloat16, the divided ones and their moments float32, and
gradients are added up in float32.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from rlhf_lab.core import ranks
from rlhf_lab.models.by_block import sample_by_block
from rlhf_lab.models.divided import divide, halve, settle
from rlhf_lab.models.logprobs import note_packing
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.models.skeleton import receive
from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import FullySharded


class Sharded(Engine):
    """Every pass needs all processes to compute alike, so that each batch is one pass, padded or packed."""

    settings: FullySharded

    def prepare(self) -> None:
        if ranks.world() == 1:  # nothing to divide
            return
        mesh = init_device_mesh(torch.device(self.run.device).type, (ranks.world(),))
        dtype = torch.bfloat16 if self.run.config.runtime.dtype == "bfloat16" else None
        reshard = self.settings.reshard_after_forward
        divided: list[nn.Module] = []
        for module in self.parts.values():
            note_packing(module)
            forbid_two_passes(module)  # not undone in `close`: the module stays divided, also for evaluations
            divide(module, mesh, reshard=reshard, dtype=dtype)
            divided.append(module)
        for model in self.algorithm.frozen():
            forbid_two_passes(model)
            if self.settings.reference == "sharded":
                note_packing(model)
                divide(model, mesh, reshard=True, reshard_root=True, dtype=dtype)
                divided.append(model)
                continue
            if dtype:  # the numbers of a divided model, so that policy and reference agree at step 0
                halve(model, dtype)
            if self.settings.reference == "resident":
                receive(model, self.run.device)
                model.to(self.run.device)  # its buffers
        if self.settings.sampling == "block":
            for model in divided:
                sample_by_block(model)

    def reshard(self) -> None:
        for module in self.parts.values():
            settle(module)


def build(settings: FullySharded, algorithm: Algorithm, run: Run) -> Sharded:
    return Sharded(settings, algorithm, run)
