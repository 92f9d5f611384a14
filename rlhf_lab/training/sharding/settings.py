"""Settings that spread a stage's training over processes (`sharding=…`). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.ranges import Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

ENGINE = "rlhf_lab.training.sharding.engine"
BUCKET = 2**26
"""Maximum number of elements in DeepSpeed's gradient buffer. A larger parameter is exchanged separately."""


@register("sharding", "none", implementation=ENGINE)
@dataclass(frozen=True)
class Single(Section):
    """One process and one device.

    Args:
        processes: processes per machine; 0 is one per GPU. rlhf_lab starts them itself unless torchrun did.
            `sharding=none` always uses one, whatever the value, so that it can be compared with the others.
        checkpointing: True to keep only the inputs of each block and recompute its activations in the backward pass:
            about a third more computation for a fraction of the memory. A prompt shared by rows is then computed once
            per row.
        reference: location of the frozen reference of DPO and of a KL penalty: `resident` on the device; `offload` in
            host memory, from which it is moved to the device for each pass over the data.
        timeout_minutes: time limit of a collective operation. If a process hangs, the others fail after this time.
            Raise it if one of them needs longer, e.g. for a slow first step. Waiting while the main process works
            alone (another stage, writing a model) does not count.
    """

    inherited: ClassVar[bool] = True
    unkeyed: ClassVar[tuple[str, ...]] = ("timeout_minutes",)  # changes neither results nor costs
    processes: Annotated[int, Ge(0, hint="0 is one for each GPU")] = 0
    checkpointing: bool = False
    reference: Literal["resident", "offload"] = "resident"
    timeout_minutes: Annotated[float, Gt(0)] = 30.0

    def contradictions(self, config: Config) -> list[str]:
        return _sharding_problems(config)


@register("sharding", "ddp", implementation=ENGINE)
@dataclass(frozen=True)
class Replicated(Single):
    """Every process has the full model and computes part of each step; gradients are summed (DDP)."""


@register("sharding", "fsdp", implementation=ENGINE)
@dataclass(frozen=True)
class FullySharded(Single):
    """Parameters, gradients and optimizer state are sharded between the processes, block by block (FSDP2).

    Args:
        reshard_after_forward: True to free a block's all-gathered parameters after its forward pass and gather them
            again for the backward pass (ZeRO-3). False keeps them until the end of the backward pass (ZeRO-2 with
            all-gathered parameters).
        reference: `sharded` shards the reference like the policy.
        sampling: how the built-in sampler reads a sharded model. `whole` gathers the full model in every process, once
            for all responses. `block` gathers each block while it computes, for every token. This is far slower, but
            works for a model that does not fit on one device.
        replicas: number of copies of the sharded model (hybrid sharding, HSDP). Each copy is sharded over
            1/`replicas` of all processes, and gradients are summed over the copies. With the number of machines,
            parameters are gathered within a machine, and only gradients cross the network. A process then holds
            `replicas` times as large a shard.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("sampling", "replicas")
    reshard_after_forward: bool = True
    reference: Literal["resident", "offload", "sharded"] = "resident"  # type: ignore[assignment]
    sampling: Literal["whole", "block"] = "whole"
    replicas: Annotated[int, Ge(1)] = 1


@register("sharding", "zero")
@dataclass(frozen=True)
class Zero(Single):
    """DeepSpeed ZeRO (arXiv:1910.02054). Needs `rlhf_lab[deepspeed]`.

    Args:
        stage: what is sharded: 1 optimizer state, 2 also gradients, 3 also parameters.
    """

    stage: Literal[1, 2, 3] = 2

    def notes(self, config: Config) -> list[str]:
        tuned = config.model.tuned.get(registry.kind_of("algorithm", config.algorithm)) or {}
        recommended = tuned.get("optimizer")
        if recommended != "muon" or getattr(config.algorithm, "optimizer", None) != "adamw":
            return []
        return [
            "sharding=zero: this stage is trained with AdamW (algorithm.optimizer=adamw). Muon, the default for this "
            "model, needs full matrices, but DeepSpeed passes pieces of them to an optimizer"
        ]


def _sharding_problems(config: Config) -> list[str]:
    """Return the reasons why this run cannot be spread over processes as configured."""
    problems = []
    sharding = registry.kind_of("sharding", config.sharding)
    lora = getattr(config.model, "lora", None)
    if lora and lora.rank and config.sharding.reference == "offload" and sharding != "fsdp":
        problems.append(
            "sharding.reference=offload: the reference of an adapter is its own base, which stays on the device and "
            "takes no additional memory; use sharding.reference=resident"
        )
    if config.engine != "native" and sharding != "none":
        problems.append(f"engine={config.engine} trains in one process; use sharding=none, or engine=native")
    samples_by_block = getattr(config.sharding, "sampling", "whole") == "block"
    if samples_by_block and registry.kind_of("rollout", config.rollout) != "local":
        problems.append(
            "sharding.sampling=block only applies to the built-in sampler, but vLLM samples from a separate copy of "
            "the model; use sharding.sampling=whole, or rollout=local"
        )
    # Both strategies shard float32 parameters and restore lower precision per pass.
    divides = sharding in ("fsdp", "zero")
    if divides and any(config.model.stored(role) != "float32" for role in ("policy", "reference")):
        problems.append(
            f"model.weights with sharding={sharding}: policies and references are sharded from float32 weights "
            "(with runtime.dtype=bfloat16 passes need half of that); use model.weights_of={reward: bfloat16} for "
            "reward models, or sharding=none or ddp"
        )
    problems += _reference_problems(config)
    if divides and getattr(config.algorithm, "optimizer", None) == "adamw_8bit":
        problems.append(
            "algorithm.optimizer=adamw_8bit stores its state in blocks of full matrices, but FSDP and DeepSpeed shard "
            "optimizer state between processes anyway; use algorithm.optimizer=adamw, or sharding=none or ddp"
        )
    if sharding == "zero" and getattr(config.algorithm, "optimizer", None) == "muon":
        problems.append(
            "algorithm.optimizer=muon needs full matrices, but DeepSpeed passes pieces of them to an optimizer; "
            "use algorithm.optimizer=adamw (with an algorithm.lr for it), or sharding=ddp, fsdp_grad_op or fsdp_full"
        )
    return problems


def _reference_problems(config: Config) -> list[str]:
    """Return the reasons why a reference cannot be stored as configured next to a fully trained policy."""
    holds_reference = any(model.reference for model in config.algorithm.model_copies(adapter=False))
    if config.model.lora.rank or not holds_reference or not config.algorithm.outputs.model:
        return []
    stored = config.model.stored("reference")
    if stored == "float32" or (stored == "bfloat16" and config.runtime.dtype == "bfloat16"):
        return []
    others = "only reward models: model.weights_of={reward: bfloat16}"
    if stored == "bfloat16":
        others += "; bfloat16 also with runtime.dtype=bfloat16"
    return [
        f"model.weights={stored}: the policy is fully trained in {config.runtime.dtype}, and a reference with other "
        "precision differs from it before the first step; train an adapter (model.lora.rank=16), or use "
        f"model.weights=float32 ({others})"
    ]
