"""ZeRO (arXiv:1910.02054) by DeepSpeed: optimiser state, gradients and parameters divided between the processes.

DeepSpeed computes a step's gradients, divides them and runs AdamW. Everything else is the lab's: the loss's
normaliser, clipping by part, the schedule, checkpoints. In bfloat16 passes run under autocast with float32 parameters,
as in one process, and gradients are added up in float32.
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
from rlhf_lab.models.divided import Root, Value, divided_by
from rlhf_lab.models.logprobs import note_packing
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.training.checkpoint import Saved
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import BUCKET, Zero

PARAMETERS = "parameters"


class AdamW(torch.optim.AdamW):
    """Skips parts that had no gradient in a step: DeepSpeed gives them zeros, and AdamW would decay their weights."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if group["idle"]:
                for flat in group["params"]:
                    flat.grad = None
        return super().step(closure)


class Passage(Root):
    """Hides the inputs and outputs of a pass from DeepSpeed's hooks, which look into them and understand only tensors.

    The forward pass takes a function without arguments and returns nothing.
    """

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        results: list[Value] = []
        self(lambda: results.append(function(*arguments)))
        return results[0]


class ZeRO(Engine):
    """One DeepSpeed engine for all trained parts; each has AdamW groups of its own.

    Stages 2 and 3 exchange gradients during the backward pass, so that all processes must compute alike: each batch is
    one pass there, padded or packed.

    Attributes:
        engine: DeepSpeed's engine.
        zero: DeepSpeed's optimiser, which divides parameters, gradients and moments around `adamw`.
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
                divided_by(module, self.root, self._gather)
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
        """The parameter groups of the parts' own optimisers, which only serve to make these."""
        names = self.optimizers.names
        groups = []
        for optimizer, peak_lr in self.optimizers.optimizers:
            for group in optimizer.param_groups:
                part = names[id(group["params"][0])].partition("/")[0]
                groups.append({**group, "peak": peak_lr, "part": part, "idle": False})
        return groups

    def _deepspeed_config(self) -> dict[str, Any]:
        """DeepSpeed's settings. It does not clip; vectors (norms, biases) are not divided in stage 3."""
        trained = [p for parameters in self.optimizers.trained.values() for p in parameters]
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {
                "stage": self.settings.stage,
                "reduce_bucket_size": min(BUCKET, sum(p.numel() for p in trained)),
                "stage3_param_persistence_threshold": max((p.numel() for p in trained if p.ndim < 2), default=0),
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
        """A divided parameter, gathered."""
        with self.deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        self.engine.set_gradient_accumulation_boundary(last)
        outputs: list[LossOutput] = []

        def compute_loss() -> Tensor:  # DeepSpeed's hooks see the one tensor that gradients flow from
            outputs.append(self.algorithm.loss(micro))
            return outputs[0].loss_N

        loss_N = self.engine(compute_loss)
        return LossOutput(loss_N, outputs[0].metrics)

    def backward(self, loss_share: Tensor) -> None:
        self.engine.backward(loss_share)

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradients of each part by their norm over all processes, as `clip_grad_norm_` does."""
        gradients: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        for index, group_gradients in self.zero.averaged_gradients.items():
            gradients[self._parameter_group(index)["part"]] += group_gradients
        zero = torch.zeros((), device=self.run.device)  # a part may have no gradient in this step
        squares = torch.stack([sum((g.square().sum() for g in shares), zero) for shares in gradients.values()])
        dist.all_reduce(squares)
        norms = dict(zip(gradients, squares.sqrt(), strict=True))
        for name, shares in gradients.items():
            factor = (self.algorithm.settings.max_grad_norm / (norms[name] + 1e-6)).clamp(max=1.0)
            for gradient in shares:
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
        """Remove what DeepSpeed keeps of the step's gradients: stage 3 would add those of the next step to it."""
        self.used.clear()
        self.zero.averaged_gradients.clear()
        if self.settings.stage == 3:
            self.zero.grad_partitions_flat_buffer.zero_()

    def _flat_parameters(self) -> list[Tensor]:
        """This process's share of the float32 parameters: one flat tensor for each group of DeepSpeed."""
        if self.settings.stage == 3:
            return self.zero.fp32_partitioned_groups_flat
        return self.zero.single_partition_of_fp32_groups

    def _parameter_group(self, index: int) -> dict[str, Any]:
        """AdamW's group for a group of DeepSpeed, which stage 3 splits further."""
        if self.settings.stage == 3:
            index = self.zero.sub_group_to_group_id[index]
        return self.adamw.param_groups[index]

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments: the flat shares of all processes, end to end, as one divided tensor each."""
        tensors: dict[str, Tensor] = {}
        for index, flat in enumerate(self._flat_parameters()):
            shares = {PARAMETERS: flat.detach(), **self.adamw.state.get(flat, {})}
            for key, share in shares.items():
                # AdamW's `step` is a scalar and the same in all processes
                tensors[f"{self._key_prefix(index)}{key}"] = self._divided(share) if share.ndim else share
        return tensors

    def load(self, saved: Saved) -> None:
        """Inverse of `tensors`. Raises ArtifactError for what another stage or number of processes saved."""
        self._check_processes(saved)
        for index, flat in enumerate(self._flat_parameters()):
            prefix = self._key_prefix(index)
            target = self._divided(flat.detach())
            for name in [name for name in saved.names() if name.startswith(prefix)]:
                tensor = saved.tensor_like(name, target)
                share = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).to(flat.device)
                key = name.removeprefix(prefix)
                if key == PARAMETERS:
                    flat.data.copy_(share)
                else:
                    self.adamw.state[flat][key] = share.clone()
        self._copy_to_model()

    def _key_prefix(self, index: int) -> str:
        return f"zero{self.settings.stage}/{index}/"

    def _divided(self, share: Tensor) -> DTensor:
        """The tensor whose rows are the shares of all processes, end to end."""
        mesh = init_device_mesh(share.device.type, (ranks.world(),))
        return DTensor.from_local(share, mesh, [Shard(0)])

    def _check_processes(self, saved: Saved) -> None:
        counts = saved.shards["rows"].get(f"{self._key_prefix(0)}{PARAMETERS}", [])
        if len(counts) == ranks.world():
            return
        strategy = f"sharding=zero{self.settings.stage}"
        holder = f"{len(counts)} processes of {strategy}" if counts else "another strategy"
        raise ArtifactError(
            f"{saved.folder} holds a checkpoint of {holder}, and {ranks.world()} processes of {strategy} can go on "
            "from their own alone; go on as it was begun, or use artifacts.refresh=true to start over"
        )

    def _copy_to_model(self) -> None:
        """Copy the float32 parameters that the optimiser holds into the model."""
        if self.settings.stage < 3:
            self.zero.update_lp_params()
            return
        # what DeepSpeed's own step does in stage 3 before and after AdamW's
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
        # parameters stay divided in stage 3, so passes of an evaluation need all processes to compute alike too
        for module in self.parts.values():
            forbid_two_passes(module)


def load(device: str) -> ModuleType:
    """Import DeepSpeed. Raises MissingDependency where it is not installed."""
    if torch.device(device).type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["deepspeed"]) from error
    warnings.filterwarnings("ignore", "`torch.distributed.*deprecated", FutureWarning)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else DeepSpeed compiles this extension now
    return deepspeed


@contextmanager
def quiet() -> Iterator[None]:
    """In this block DeepSpeed logs only errors; it warns of every optimiser that is not its own."""
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def build(settings: Zero, algorithm: Algorithm, run: Run) -> Engine:
    engine = ZeRO if ranks.world() > 1 else Engine  # one process has nothing to divide
    return engine(settings, algorithm, run)
