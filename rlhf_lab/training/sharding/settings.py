"""Settings of how a stage's training is spread over processes (`sharding=…`). Imports no torch"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.ranges import CheckedSettings, Ge

BUCKET = 2**26
"""Elements of the buffer through which DeepSpeed exchanges gradients, at most; a larger parameter goes by itself."""


@register("sharding", "none")
@dataclass(frozen=True)
class Single(CheckedSettings):
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

    processes: Annotated[int, Ge(0, hint="0 is one for each GPU")] = 0
    checkpointing: bool = False
    reference: Literal["resident", "offload"] = "resident"


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
