"""ZeRO (arXiv:1910.02054) with DeepSpeed: optimizer state, gradients and parameters sharded between the processes.

DeepSpeed computes a step's gradients, shards them and runs AdamW. rlhf_lab does everything else: the loss normaliser,
clipping by part, the schedule, checkpoints. In bfloat16 passes run under autocast with float32 parameters, as in one
process, and gradients are summed in float32.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import OPTIONAL, ArtifactError, MissingDependency
from rlhf_lab.models.logprobs import note_packing
from rlhf_lab.models.sharded import Root, Value, shard_model
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.training.checkpoint import Saved
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import BUCKET, Zero

PARAMETERS = "parameters"


class AdamW(torch.optim.AdamW):
    """AdamW that skips parts without a gradient in a step: DeepSpeed gives them zeros, so their weights would decay."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if group["idle"]:
                for flat in group["params"]:
                    flat.grad = None
        return super().step(closure)


class Passage(Root):
    """A module that hides the inputs and outputs of a pass from DeepSpeed's hooks, which only handle tensors.

    The forward pass takes a function without arguments and returns nothing.
    """

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        results: list[Value] = []
        self(lambda: results.append(function(*arguments)))
        return results[0]


class ZeRO(Engine):
    """One DeepSpeed engine for all trained parts; each part has its own AdamW groups.

    Stages 2 and 3 exchange gradients during the backward pass and need the same computation in all processes, so each
    batch is one pass there (padded or packed).

    Attributes:
        engine: DeepSpeed's engine.
        zero: DeepSpeed's optimizer, which shards parameters, gradients and optimizer state around `adamw`.
        used: parts that have had a gradient in this step.
    """

    settings: Zero

    def __init__(self, settings: Zero, algorithm: Algorithm, run: Run):
        super().__init__(settings, algorithm, run)
        self.root = Passage(nn.ModuleDict(self.parts))
        self.adamw = AdamW(self._parameter_groups())
        self.used: set[str] = set()
        for name, parameters in self.optimizers.trained.items():
            for parameter in parameters:
                hook = parameter.register_hook(partial(self._mark_used, name))
                self._undo.append(hook.remove)
        if settings.stage == 3:
            for module in self.parts.values():
                shard_model(module, self.root, self._gather)
        self.deepspeed = load(run.device)
        with quiet():
            self.engine, self.zero, _, _ = self.deepspeed.initialize(
                model=self.root, optimizer=self.adamw, config=self._deepspeed_config()
            )

    def prepare(self) -> None:
        if self.settings.stage > 1:
            for module in self.parts.values():
                note_packing(module)
            self._undo += [forbid_two_passes(module) for module in self.parts.values()]

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of the parts' own optimisers, which are created only for this purpose."""
        names = self.optimizers.names
        groups = []
        for optimizer, peak_lr in self.optimizers.optimizers:
            for group in optimizer.param_groups:
                part = names[id(group["params"][0])].partition("/")[0]
                groups.append({**group, "peak": peak_lr, "part": part, "idle": False})
        return groups

    def _deepspeed_config(self) -> dict[str, Any]:
        """Return DeepSpeed's settings. It does not clip; stage 3 does not shard vectors (norms, biases)."""
        trained = [p for parameters in self.optimizers.trained.values() for p in parameters]
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": self.settings.stage,
                "reduce_bucket_size": min(BUCKET, sum(p.numel() for p in trained)),
                "stage3_param_persistence_threshold": max((p.numel() for p in trained if p.ndim < 2), default=0),
                # no prefetch and no reuse: parameters are freed as soon as a block has used them
                "stage3_prefetch_bucket_size": 0,
                "stage3_max_reuse_distance": 0,
            },
        }
        if self.run.config.runtime.dtype == "bfloat16":
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        return config

    def _mark_used(self, part: str, _gradient: Tensor) -> None:
        self.used.add(part)

    def _gather(self, parameter: nn.Parameter) -> Tensor:
        """Return the full copy of a sharded parameter."""
        with self.deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        self.engine.set_gradient_accumulation_boundary(last)
        outputs: list[LossOutput] = []

        def compute_loss() -> Tensor:  # DeepSpeed's hooks need one tensor with gradients
            outputs.append(self.algorithm.loss(micro))
            return outputs[0].loss_N

        loss_N = self.engine(compute_loss)
        return LossOutput(loss_N, outputs[0].metrics)

    def backward(self, loss_weight: Tensor) -> None:
        self.engine.backward(loss_weight)

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradients of each part by their norm over all processes, as `clip_grad_norm_` does."""
        gradients: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        for index, group_gradients in self.zero.averaged_gradients.items():
            gradients[self._parameter_group(index)["part"]] += group_gradients
        zero = torch.zeros((), device=self.run.device)  # a part may have no gradient in this step
        # Every process has disjoint pieces of the gradients, so squared norms add up over processes.
        local_squares = [sum((g.square().sum() for g in shards), zero) for shards in gradients.values()]
        squares = torch.stack(local_squares)
        dist.all_reduce(squares)
        norms = dict(zip(gradients, squares.sqrt(), strict=True))
        for name, shards in gradients.items():
            # the same ε as in `clip_grad_norm_`
            ratio = self.algorithm.settings.max_grad_norm / (norms[name] + 1e-6)
            factor = ratio.clamp(max=1.0)
            for gradient in shards:
                gradient.mul_(factor)
        return norms

    def step(self, scale: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = group["peak"] * scale
            group["idle"] = group["part"] not in self.used
        self.engine.step()
        self._clear_gradients()

    def skip(self) -> None:
        self.zero.zero_grad()
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Remove DeepSpeed's gradients of this step; otherwise stage 3 would add those of the next step to them."""
        self.used.clear()
        self.zero.averaged_gradients.clear()
        if self.settings.stage == 3:
            self.zero.grad_partitions_flat_buffer.zero_()

    def _flat_parameters(self) -> list[Tensor]:
        """Return this process's shard of the float32 parameters: one flat tensor per group of DeepSpeed."""
        if self.settings.stage == 3:
            return self.zero.fp32_partitioned_groups_flat
        return self.zero.single_partition_of_fp32_groups

    def _parameter_group(self, index: int) -> dict[str, Any]:
        """Return the AdamW parameter group of DeepSpeed's group `index`; stage 3 splits AdamW's groups further."""
        if self.settings.stage == 3:
            index = self.zero.sub_group_to_group_id[index]
        return self.adamw.param_groups[index]

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and optimizer state; each is a sharded tensor of the flat shards of all processes."""
        tensors: dict[str, Tensor] = {}
        for index, flat in enumerate(self._flat_parameters()):
            shards = {PARAMETERS: flat.detach(), **self.adamw.state.get(flat, {})}
            for key, shard in shards.items():
                # AdamW's `step` is a scalar with the same value in all processes.
                tensors[f"{self._key_prefix(index)}{key}"] = self._sharded(shard) if shard.ndim else shard
        return tensors

    def load(self, saved: Saved) -> None:
        """Restore `tensors`. Raise ArtifactError if another ZeRO stage or process count saved the checkpoint."""
        self._check_processes(saved)
        for index, flat in enumerate(self._flat_parameters()):
            prefix = self._key_prefix(index)
            target = self._sharded(flat.detach())
            for name in [name for name in saved.names() if name.startswith(prefix)]:
                tensor = saved.tensor_like(name, target)
                shard = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).to(flat.device)
                key = name.removeprefix(prefix)
                if key == PARAMETERS:
                    flat.data.copy_(shard)
                else:
                    self.adamw.state[flat][key] = shard.clone()
        self._copy_to_model()

    def _key_prefix(self, index: int) -> str:
        return f"zero{self.settings.stage}/{index}/"

    def _sharded(self, share: Tensor) -> DTensor:
        """Return the tensor whose rows are the concatenated shards of all processes."""
        mesh = init_device_mesh(share.device.type, (ranks.world(),))
        return DTensor.from_local(share, mesh, [Shard(0)])

    def _check_processes(self, saved: Saved) -> None:
        counts = saved.shards["rows"].get(f"{self._key_prefix(0)}{PARAMETERS}", [])
        if len(counts) == ranks.world():
            return
        strategy = f"sharding=zero{self.settings.stage}"
        holder = f"{len(counts)} processes of {strategy}" if counts else "another strategy"
        raise ArtifactError(
            f"{saved.directory} has a checkpoint of {holder}, but {ranks.world()} processes of {strategy} can only "
            "resume their own; use the original setting, or artifacts.refresh=true to start over"
        )

    def _copy_to_model(self) -> None:
        """Copy the float32 parameters of the optimizer into the model."""
        if self.settings.stage < 3:
            self.zero.update_lp_params()
            return
        # In stage 3, DeepSpeed's own step makes these calls before and after AdamW's step.
        self.zero._partition_all_parameters()
        for index in range(len(self._flat_parameters())):
            self.zero._reassign_or_swap_out_partitioned_parameters(index)
        self.zero._post_step(set())

    def close(self) -> None:
        super().close()
        self.adamw.state.clear()
        if self.settings.stage < 3:
            self.engine.destroy()
            return
        # Stage 3 leaves parameters sharded, so passes of an evaluation also need the same computation in all processes.
        for module in self.parts.values():
            forbid_two_passes(module)


def load(device: str) -> ModuleType:
    """Import DeepSpeed. Raise MissingDependency if it is not installed."""
    if torch.device(device).type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["deepspeed"]) from error
    warnings.filterwarnings("ignore", "`torch.distributed.*deprecated", FutureWarning)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # otherwise DeepSpeed would compile this extension now
    )
    return deepspeed


@contextmanager
def quiet() -> Iterator[None]:
    """Reduce DeepSpeed's log to errors in this block, because it warns of every optimizer that is not its own."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def build(settings: Zero, algorithm: Algorithm, run: Run) -> Engine:
    return (ZeRO if ranks.world() > 1 else Engine)(settings, algorithm, run)  # one process has nothing to shard
