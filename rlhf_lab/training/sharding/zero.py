"""ZeRO (arXiv:1910.02054) by DeepSpeed: optimiser state, gradients and parameters divided between the processes.

DeepSpeed computes a step's gradients, divides them and makes AdamW's step. Everything else is the lab's: the loss's
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
from rlhf_lab.models.shared_prompt import forbid_sharing
from rlhf_lab.training.checkpoint import Saved
from rlhf_lab.training.loop import Algorithm, LossOutput
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import BUCKET, Zero

PARAMETERS = "parameters"


class AdamW(torch.optim.AdamW):
    """Leaves alone the parts that had no gradient in a step: DeepSpeed gives them zeros, and AdamW would decay them."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if group["idle"]:
                for flat in group["params"]:
                    flat.grad = None
        return super().step(closure)


class Passage(Root):
    """DeepSpeed's hooks look into what a pass takes and gives, and know tensors alone: they get to see nothing."""

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        found: list[Value] = []
        self(lambda: found.append(function(*arguments)))
        return found[0]


class ZeRO(Engine):
    """All parts are one DeepSpeed engine, with AdamW groups of their own.

    Stages 2 and 3 exchange gradients while a pass goes backwards, so that all processes must compute alike: a prompt
    shared by rows, which some passes have and some not, is not used.
    """

    settings: Zero

    def __init__(self, settings: Zero, algorithm: Algorithm, run: Run):
        super().__init__(settings, algorithm, run)
        self.root = Passage(nn.ModuleDict(self.parts))
        self.adamw = AdamW(self._groups())
        self.used: set[str] = set()
        for name, parameters in self.optimizers.trained.items():
            for parameter in parameters:
                self._undo.append(parameter.register_hook(partial(self._note, name)).remove)
        if settings.stage == 3:
            for module in self.parts.values():
                divided_by(module, self.root, self._whole)
        self.deepspeed = load(run.device)
        with quiet():
            self.engine, self.zero, _, _ = self.deepspeed.initialize(
                model=self.root, optimizer=self.adamw, config=self._config()
            )

    def prepare(self) -> None:
        if self.settings.stage > 1:
            self._undo += [forbid_sharing(module) for module in self.parts.values()]

    def _groups(self) -> list[dict[str, Any]]:
        """The groups of the parts' own optimisers, which are not used further."""
        names = self.optimizers.names
        return [
            {**group, "peak": peak, "part": names[id(group["params"][0])].partition("/")[0], "idle": False}
            for optimizer, peak in self.optimizers.optimizers
            for group in optimizer.param_groups
        ]

    def _config(self) -> dict[str, Any]:
        """DeepSpeed's settings. It does not clip; vectors (norms, biases) are whole everywhere in stage 3."""
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

    def _note(self, part: str, _gradient: Tensor) -> None:
        self.used.add(part)

    def _whole(self, parameter: nn.Parameter) -> Tensor:
        """A divided parameter, gathered."""
        with self.deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def loss(self, micro: Any, *, last: bool) -> LossOutput:
        self.engine.set_gradient_accumulation_boundary(last)
        found: list[LossOutput] = []

        def compute() -> Tensor:  # the only tensor that DeepSpeed has to know of
            found.append(self.algorithm.loss(micro))
            return found[0].loss_N

        return LossOutput(self.engine(compute), found[0].metrics)

    def backward(self, share: Tensor) -> None:
        self.engine.backward(share)

    def clip(self) -> dict[str, Tensor]:
        """Clip each part's gradients by the norm over what all processes hold of them."""
        gradients: dict[str, list[Tensor]] = {name: [] for name in self.parts}
        for index, found in self.zero.averaged_gradients.items():
            gradients[self._group(index)["part"]] += found
        none = torch.zeros((), device=self.run.device)
        squares = torch.stack([sum((g.square().sum() for g in found), none) for found in gradients.values()])
        dist.all_reduce(squares)
        norms = dict(zip(gradients, squares.sqrt(), strict=True))
        for name, found in gradients.items():
            factor = (self.algorithm.settings.max_grad_norm / (norms[name] + 1e-6)).clamp(max=1.0)
            for gradient in found:
                gradient.mul_(factor)
        return norms

    def step(self, scale: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"], group["idle"] = group["peak"] * scale, group["part"] not in self.used
        self.engine.step()
        self._forget()

    def skip(self) -> None:
        self.zero.zero_grad()
        self._forget()

    def _forget(self) -> None:
        """No gradient of this step is left: stage 3 would add to it what a later pass gives."""
        self.used.clear()
        self.zero.averaged_gradients.clear()
        if self.settings.stage == 3:
            self.zero.grad_partitions_flat_buffer.zero_()

    def _flats(self) -> list[Tensor]:
        """This process's share of the float32 parameters: for each group of DeepSpeed, all of them end to end."""
        stage_3 = self.settings.stage == 3
        return self.zero.fp32_partitioned_groups_flat if stage_3 else self.zero.single_partition_of_fp32_groups

    def _group(self, index: int) -> dict[str, Any]:
        """The optimiser's group that DeepSpeed's group belongs to."""
        return self.adamw.param_groups[self.zero.sub_group_to_group_id[index] if self.settings.stage == 3 else index]

    def tensors(self) -> dict[str, Tensor]:
        """The shares of all processes, end to end, as rows of one tensor."""
        return {
            f"{self._prefix(index)}{key}": self._rows(own) if own.ndim else own
            for index, flat in enumerate(self._flats())
            for key, own in {PARAMETERS: flat.detach(), **self.adamw.state.get(flat, {})}.items()
        }

    def load(self, saved: Saved) -> None:
        """Inverse of `tensors`. Raises ArtifactError for what another stage or number of processes saved."""
        self._check(saved)
        for index, flat in enumerate(self._flats()):
            prefix, rows = self._prefix(index), self._rows(flat.detach())
            for name in [name for name in saved.names() if name.startswith(prefix)]:
                found, key = saved.like(name, rows), name.removeprefix(prefix)
                own = (found.to_local() if isinstance(found, DTensor) else found).to(flat.device)
                if key == PARAMETERS:
                    flat.data.copy_(own)
                else:
                    self.adamw.state[flat][key] = own.clone()
        self._spread()

    def _prefix(self, index: int) -> str:
        return f"zero{self.settings.stage}/{index}/"

    def _rows(self, own: Tensor) -> DTensor:
        mesh = init_device_mesh(own.device.type, (ranks.world(),))
        return DTensor.from_local(own, mesh, [Shard(0)])

    def _check(self, saved: Saved) -> None:
        counts = saved.shards["rows"].get(f"{self._prefix(0)}{PARAMETERS}", [])
        if len(counts) == ranks.world():
            return
        strategy = f"sharding=zero{self.settings.stage}"
        holder = f"{len(counts)} processes of {strategy}" if counts else "another strategy"
        raise ArtifactError(
            f"{saved.folder} holds a checkpoint of {holder}, and {ranks.world()} processes of {strategy} can go on "
            "from their own alone; go on as it was begun, or use artifacts.refresh=true to start over"
        )

    def _spread(self) -> None:
        """Give the model the parameters that the optimiser holds."""
        if self.settings.stage < 3:
            self.zero.update_lp_params()
            return
        self.zero._partition_all_parameters()
        for index in range(len(self._flats())):
            self.zero._reassign_or_swap_out_partitioned_parameters(index)
        self.zero._post_step(set())

    def close(self) -> None:
        super().close()
        self.adamw.state.clear()
        if self.settings.stage < 3:
            self.engine.destroy()
            return
        for module in self.parts.values():  # its parameters stay divided: passes need all processes as before
            forbid_sharing(module)


def load(device: str) -> ModuleType:
    """DeepSpeed. Raises MissingDependency where it is not installed."""
    if torch.device(device).type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["deepspeed"]) from error
    warnings.filterwarnings("ignore", "`torch.distributed.*deprecated", FutureWarning)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled here and now
    return deepspeed


@contextmanager
def quiet() -> Iterator[None]:
    """In this block DeepSpeed reports errors alone; it warns of every optimiser that is not its own."""
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def build(settings: Zero, algorithm: Algorithm, run: Run) -> Engine:
    """One process has nothing to divide."""
    return (ZeRO if ranks.world() > 1 else Engine)(settings, algorithm, run)
