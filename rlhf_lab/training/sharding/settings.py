"""Settings of how a stage's training is spread over processes (`sharding=…`). Imports no torch"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.ranges import Ge

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

BUCKET = 2**26
"""Elements of the buffer through which DeepSpeed exchanges gradients, at most; a larger parameter goes by itself."""


@register("sharding", "none")
@dataclass(frozen=True)
class Single(Section):
    """One process and one device.

    Args:
        processes: per machine; 0 is one for each GPU. Started by the lab itself, unless torchrun did. `sharding=none`
            takes one, whatever is written here, so that it can be compared with the others.
        checkpointing: keep only the inputs of each block and compute its activations again in the backward pass:
            about a third more arithmetic for a fraction of the memory. A prompt shared by rows is then computed once
            per row.
        reference: where the frozen reference of DPO and of a KL penalty lies: `resident` on the device; `offload` in
            host memory, moved to the device for each pass over the data.
    """

    inherited: ClassVar[bool] = True
    processes: Annotated[int, Ge(0, hint="0 is one for each GPU")] = 0
    checkpointing: bool = False
    reference: Literal["resident", "offload"] = "resident"

    def contradictions(self, config: Config) -> list[str]:
        return _sharding_problems(config)


@register("sharding", "ddp")
@dataclass(frozen=True)
class Replicated(Single):
    """Every process holds everything and computes its share of each step; gradients are added (DDP)."""


@register("sharding", "fsdp")
@dataclass(frozen=True)
class FullySharded(Single):
    """Parameters, gradients and optimiser state are divided between the processes, block by block (FSDP2).

    Args:
        reshard_after_forward: free a block's gathered parameters after its forward pass and gather them again for the
            backward pass (ZeRO-3); off keeps them until the backward pass is done (ZeRO-2 with gathered parameters).
        reference: `sharded` divides the reference like the policy.
        sampling: how the lab's own sampler reads a divided model: `whole` gathers all of it in every process, once for
            all replies; `block` gathers each block while it computes, at every token, which is slower by far: for a
            model that fits no device whole.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("sampling",)
    reshard_after_forward: bool = True
    reference: Literal["resident", "offload", "sharded"] = "resident"  # type: ignore[assignment]
    sampling: Literal["whole", "block"] = "whole"


@register("sharding", "zero")
@dataclass(frozen=True)
class Zero(Single):
    """DeepSpeed ZeRO (arXiv:1910.02054). Needs `rlhf_lab[deepspeed]`.

    Args:
        stage: what is divided: 1 optimiser state, 2 gradients too, 3 parameters too.
    """

    stage: Literal[1, 2, 3] = 2


def _sharding_problems(config: Config) -> list[str]:
    """Why this run cannot be spread over processes as configured."""
    problems = []
    sharding = registry.kind_of("sharding", config.sharding)
    lora = getattr(config.model, "lora", None)
    if lora and lora.rank and config.sharding.reference == "offload" and sharding != "fsdp":
        problems.append(
            "sharding.reference=offload: the reference of an adapter is its own base, which stays on the device and "
            "takes no memory of its own; use sharding.reference=resident"
        )
    if config.engine != "native" and sharding != "none":
        problems.append(f"engine={config.engine} trains in one process here; use sharding=none, or engine=native")
    samples_by_block = getattr(config.sharding, "sampling", "whole") == "block"
    if samples_by_block and registry.kind_of("rollout", config.rollout) != "local":
        problems.append(
            "sharding.sampling=block is how the lab's own sampler reads a divided policy, and vLLM samples from a "
            "model of its own; use sharding.sampling=whole, or rollout=local"
        )
    divides = sharding in ("fsdp", "zero")
    if divides and any(config.model.stored(role) != "float32" for role in ("policy", "reference")):
        problems.append(
            f"model.weights with sharding={sharding}: policies and references are divided from float32 weights there "
            "(with runtime.dtype=bfloat16 passes take half of that); write model.weights_of={reward: bfloat16} for "
            "reward models, or use sharding=none or ddp"
        )
    problems += _reference_problems(config)
    if divides and getattr(config.algorithm, "optimizer", None) == "adamw_8bit":
        problems.append(
            "algorithm.optimizer=adamw_8bit keeps moments in blocks of whole matrices, and FSDP and DeepSpeed divide "
            "moments between processes in any case; use algorithm.optimizer=adamw, or sharding=none or ddp"
        )
    if sharding == "zero" and getattr(config.algorithm, "optimizer", None) == "muon":
        problems.append(
            "algorithm.optimizer=muon orthogonalises whole matrices, and DeepSpeed gives an optimiser pieces of them; "
            "use algorithm.optimizer=adamw (with an algorithm.lr for it), or sharding=ddp, fsdp_grad_op or fsdp_full"
        )
    return problems


def _reference_problems(config: Config) -> list[str]:
    """Why a reference cannot be stored as configured beside a policy that is trained as a whole."""
    holds_reference = any(model.reference for model in config.algorithm.held(adapter=False))
    if config.model.lora.rank or not holds_reference or not config.algorithm.makes_model:
        return []
    stored = config.model.stored("reference")
    if stored == "float32" or (stored == "bfloat16" and config.runtime.dtype == "bfloat16"):
        return []
    others = "reward models alone: model.weights_of={reward: bfloat16}"
    if stored == "bfloat16":
        others += "; bfloat16 also with runtime.dtype=bfloat16"
    return [
        f"model.weights={stored}: the policy is trained as a whole in {config.runtime.dtype}, and a reference that "
        "computes otherwise differs from it before the first step; train an adapter (model.lora.rank=16), or write "
        f"model.weights=float32 ({others})"
    ]
