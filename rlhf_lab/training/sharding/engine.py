"""Engine that computes a training step. The training loop calls it without knowledge of processes.

`Engine` is for a single process. Its subclasses split the work: `DataParallel` (DDP), `Sharded` (FSDP2) and `ZeRO`
(DeepSpeed, zero.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.models.by_block import sample_by_block
from rlhf_lab.models.logprobs import note_packing
from rlhf_lab.models.sharded import cast_blocks, checkpoint_blocks, divide, free_gathered, keep_in_host_memory
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.models.skeleton import receive
from rlhf_lab.training.checkpoint import Saved, load_trained_state, trained_state
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.optim import Optimizers
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.settings import FullySharded, Replicated, Single


class Engine:
    """Engine of a single process: computes losses and gradients of an algorithm and updates its parameters.

    Attributes:
        parts: name → trained module.
        keeps_gradients: True if gradients are set to 0 after a step instead of freed; see `Optimizers`.
    """

    keeps_gradients = False

    def __init__(self, settings: Single, algorithm: Algorithm, run: Run):
        self.settings = settings
        self.algorithm = algorithm
        self.run = run
        parts = algorithm.parts()
        self.parts: dict[str, nn.Module] = {name: part.module for name, part in parts.items()}
        self._undo: list[Callable[[], None]] = []
        if settings.reference == "offload":
            for model in algorithm.frozen_modules():
                keep_in_host_memory(model, run.device)
        # Optimisers are created last, because sharding a module replaces its parameters.
        self.prepare()
        # Checkpointing wraps blocks, and sharding replaces their parameters, so it comes after `prepare`.
        if settings.checkpointing:
            self._undo += [checkpoint_blocks(module) for module in self.parts.values()]
        self.optimizers = Optimizers(parts, algorithm.settings, keep_gradients=self.keeps_gradients)

    def prepare(self) -> None:
        """Shard or wrap the modules. Called before optimisers get the parameters."""

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        """Return the loss of a micro-batch; `last` is True for the last one of the step."""
        del last
        return self.algorithm.loss(micro)

    def backward(self, loss_weight: Tensor) -> None:
        """Add the gradients of a part of the step's loss. They are averaged over all processes."""
        loss_weight.backward()

    def clip(self) -> dict[str, Tensor]:
        """Clip the step's gradients and return the gradient norm of each part before clipping."""
        return self.optimizers.clip()

    def step(self, scale: float) -> None:
        """Update the parameters at `scale` times the peak learning rates."""
        self.optimizers.step(scale)

    def skip(self) -> None:
        """Drop the step's gradients without an update."""
        self.optimizers.zero_grad()

    def reshard(self) -> None:
        """Free parameters that a pass has all-gathered, so that the modules have only their own shards."""

    def memory_mib(self) -> dict[str, float]:
        """Return the MiB of trained parameters and their state in this process (definitions: training/metrics.py)."""
        self.reshard()
        # Critic and policy may be adapters on one base, whose tensors count only once.
        parameters = list(nn.ModuleDict(self.parts).parameters())
        tensors_by_metric: dict[str, list[Tensor]] = {
            "memory/parameters": [*parameters],
            "memory/gradients": [p.grad for p in parameters if p.grad is not None],
            "memory/optimizer": list(self.optimizers.tensors().values()),
        }
        return {name: sum(map(_local_bytes, tensors)) / 2**20 for name, tensors in tensors_by_metric.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name."""
        self.reshard()
        tensors: dict[str, Tensor] = {}
        for name, module in self.parts.items():
            tensors |= {f"model/{name}/{key}": tensor for key, tensor in trained_state(module).items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizers.tensors().items()}
        return tensors

    def load(self, saved: Saved) -> None:
        """Restore the result of `tensors`.

        Raise ArtifactError for a checkpoint of DeepSpeed, which only the same ZeRO stage with the same number of
        processes can load.
        """
        for name, counts in saved.shards["rows"].items():
            if name.startswith("zero"):
                raise ArtifactError(
                    f"{saved.directory} has a checkpoint of {len(counts)} processes of "
                    f"sharding={name.split('/')[0]}, which only the same number of processes can resume; "
                    "start as many, or use artifacts.refresh=true to start over"
                )
        self.reshard()
        for name, module in self.parts.items():
            load_trained_state(module, saved, f"model/{name}/")
        optimizer_state = [name.removeprefix("optimizer/") for name in saved.names() if name.startswith("optimizer/")]
        self.optimizers.load(optimizer_state, lambda name, parameter: saved.tensor_like(f"optimizer/{name}", parameter))

    def close(self) -> None:
        """Undo the changes to the models after training. Sharded parameters stay sharded."""
        for undo in reversed(self._undo):
            undo()


def _local_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor, or of its rows in this process."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


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
        self.ddp = DistributedDataParallel(
            Loss(self.algorithm, self.parts),
            find_unused_parameters=self.has_several_parts,
            gradient_as_bucket_view=True,
        )
        # If gradients were freed after a step, passes without an exchange would allocate new ones next to DDP's
        # buckets, 4 bytes per parameter. Therefore they stay views of the buckets and are set to 0.
        self.keeps_gradients = not self.has_several_parts

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        exchanges = last or self.has_several_parts
        with nullcontext() if exchanges else self.ddp.no_sync():
            return self.ddp(micro)


class Sharded(Engine):
    """FSDP2: parameters, gradients and optimizer state are sharded block by block.

    With `sharding.replicas` above 1 there are several copies of the sharded model (HSDP). In bfloat16, all-gathered
    parameters and computations are bfloat16. Sharded parameters and optimizer state are float32, and gradients are
    summed in float32. All processes need the same computation per pass, so each batch is one pass (padded or packed).
    """

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


def build(settings: Single, algorithm: Algorithm, run: Run) -> Engine:
    strategies = {Replicated: DataParallel, FullySharded: Sharded}
    # one process has nothing to share or shard
    engine = strategies.get(type(settings), Engine) if ranks.world() > 1 else Engine
    return engine(settings, algorithm, run)
