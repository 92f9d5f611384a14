"""Fully sharded data parallelism (FSDP2): parameters, gradients and optimizer state are sharded block by block.

With `sharding.replicas` above 1 there are several copies of the sharded model (HSDP).

In bfloat16, all-gathered parameters and computations are bfloat16. Sharded parameters and optimizer state are float32,
and gradients are summed in float32.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.by_block import sample_by_block
from rlhf_lab.models.logprobs import note_packing
from rlhf_lab.models.sharded import cast_blocks, divide, free_gathered
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.models.skeleton import receive
from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import FullySharded


class Sharded(Engine):
    """FSDP2 engine. All processes need the same computation per pass, so each batch is one pass (padded or packed)."""

    settings: FullySharded

    def prepare(self) -> None:
        mesh = self._mesh()
        dtype = torch.bfloat16 if self.run.config.runtime.dtype == "bfloat16" else None
        reshard = self.settings.reshard_after_forward
        sharded: list[nn.Module] = []
        for module in self.parts.values():
            note_packing(module)
            forbid_two_passes(module)  # stays after `close`, because the module remains sharded in evaluations
            divide(module, mesh, reshard=reshard, dtype=dtype)
            sharded.append(module)
        for model in self.algorithm.frozen_modules():
            forbid_two_passes(model)
            if self.settings.reference == "sharded":
                note_packing(model)
                divide(model, mesh, reshard=True, reshard_root=True, dtype=dtype)
                sharded.append(model)
                continue
            # Cast like a sharded model, so that policy and reference agree at step 0.
            if dtype:
                cast_blocks(model, dtype)
            if self.settings.reference == "resident":
                receive(model, self.run.device)
                model.to(self.run.device)  # moves its buffers
        if self.settings.sampling == "block":
            for model in sharded:
                sample_by_block(model)

    def _mesh(self) -> DeviceMesh:
        """Return the mesh of all processes: shards, or copies × shards. Raise ConfigError if they do not fit."""
        device = torch.device(self.run.device).type
        copies, processes = self.settings.replicas, ranks.world()
        if processes % copies:
            raise ConfigError(
                f"sharding.replicas={copies} does not divide the {processes} processes of this run into equal groups; "
                f"use sharding.replicas=1, or a divisor of {processes} such as the number of machines"
            )
        if copies == 1:
            return init_device_mesh(device, (processes,))
        # Ranks of one machine are consecutive, so that with one copy per machine its shards stay on the machine.
        return init_device_mesh(device, (copies, processes // copies), mesh_dim_names=("replicate", "shard"))

    def reshard(self) -> None:
        for module in self.parts.values():
            free_gathered(module)


def build(settings: FullySharded, algorithm: Algorithm, run: Run) -> Engine:
    return (Sharded if ranks.world() > 1 else Engine)(settings, algorithm, run)  # one process has nothing to shard
