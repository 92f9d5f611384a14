"""What a model holds between steps: bytes per parameter, and how a strategy divides them between processes.

The derivation, per parameter that is trained in bfloat16 autocast:

    weights 4 (float32) + copy for the matmuls 2 (bfloat16) + gradient 4 + Adam's two moments 4 + 4 = 18 bytes

In float32 there is no copy: 16. Muon keeps one moment of a hidden matrix: 14 and 12. A frozen model is its weights.

Of P parameters on N processes:

    ddp             18P, and 4P for the buckets through which gradients are exchanged
    fsdp_grad_op    2P + 16P/N: the gathered copy is whole
    fsdp_full       16P/N and copies of the blocks at work (18P/N were the copy divided as well)
    zero1, 2, 3     2P + 2P + 12P/N, 2P + 14P/N, 16P/N (arXiv:1910.02054): weights and gradients are bfloat16, float32
                    weights lie with the moments
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_lab.analysis.memory_shapes import ModelShape

Precision = Literal["float32", "bfloat16"]
WEIGHT, GRADIENT, MOMENT = 4, 4, 4
GATHERED_BLOCKS = 2
"""Blocks whose gathered parameters exist at once: the one that computes and the next."""


@dataclass(frozen=True)
class State:
    """Bytes of one model on one process.

    Attributes:
        weights: as they are stored.
        copy: of the weights in the arithmetic of the matmuls, or gathered from the other processes.
        gradients, optimizer: of what is trained.
        buffers: through which gradients are exchanged.
    """

    weights: int
    copy: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0

    @property
    def always(self) -> int:
        """What is there from the second step on, whatever is computed."""
        return self.weights + self.optimizer + self.buffers

    @property
    def total(self) -> int:
        return self.always + self.copy + self.gradients


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Args:
        precision: arithmetic of the forward pass.
        optimizer: `adamw`, or `muon` for hidden matrices with AdamW for the rest.
        rank: of a LoRA adapter; 0 trains all parameters.
        targets: ends of the adapted layers' names; None is all linear layers of the blocks.
        checkpointing: only the inputs of blocks are kept.
    """

    precision: Precision = "float32"
    optimizer: Literal["adamw", "muon"] = "adamw"
    rank: int = 0
    targets: Sequence[str] | None = None
    checkpointing: bool = False

    def trained(self, shape: ModelShape) -> int:
        """Parameters with a gradient: all, or the adapter and a new scalar head."""
        if not self.rank:
            return shape.parameters
        return shape.adapter(self.rank, self.targets) + shape.outputs * shape.hidden

    def moments(self, shape: ModelShape) -> int:
        """Numbers that the optimiser keeps."""
        trained = self.trained(shape)
        if self.optimizer == "adamw":
            return 2 * trained
        hidden = shape.adapter(self.rank, self.targets) if self.rank else shape.hidden_matrices
        return hidden + 2 * (trained - hidden)


@dataclass(frozen=True)
class Strategy:
    """What N processes divide between them.

    Attributes:
        weights, gradients, optimizer: whether each process holds 1/N of them.
        gathered: what of divided weights is whole at once: the `model` or some `blocks`.
        buckets: gradients are exchanged through buffers of their size.
        master: the weights are held in the arithmetic of training and float32 ones belong to the optimiser (DeepSpeed).
    """

    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    gathered: Literal["", "model", "blocks"] = ""
    buckets: bool = False
    master: bool = False


STRATEGIES = {
    "none": Strategy(),
    "ddp": Strategy(buckets=True),
    "fsdp_grad_op": Strategy(True, True, True, "model"),
    "fsdp_full": Strategy(True, True, True, "blocks"),
    "zero1": Strategy(optimizer=True, master=True),
    "zero2": Strategy(gradients=True, optimizer=True, master=True),
    "zero3": Strategy(True, True, True, "blocks", master=True),
}
"""`sharding=…` → what it divides."""


def frozen_state(shape: ModelShape) -> State:
    """A model that only scores: float32 weights."""
    return State(WEIGHT * shape.parameters)


def trained_state(shape: ModelShape, training: Training, strategy: str = "none", processes: int = 1) -> State:
    """One process's bytes of a model that is trained.

    Only matrices that hidden states are multiplied by have a copy in the arithmetic of the matmuls; with activation
    checkpointing, which makes it again, one block's and the head's at a time.
    """
    plan, trained = STRATEGIES[strategy], training.trained(shape)
    low = 2 if training.precision == "bfloat16" else WEIGHT
    stored = shape.parameters + (trained if training.rank else 0)
    weight, gradient, master = (low, low, WEIGHT) if plan.master else (WEIGHT, GRADIENT, 0)
    moments = MOMENT * training.moments(shape) + master * trained
    blocks = 1 if training.checkpointing else shape.layers
    copy = low * (shape.multiplied - (shape.layers - blocks) * shape.block_matrices)
    if low == WEIGHT or plan.master:
        copy = 0
    if plan.gathered and processes > 1:
        copy = low * (shape.parameters if plan.gathered == "model" else _gathered(shape))
    return State(
        _share(weight * stored, plan.weights, processes),
        copy,
        _share(gradient * trained, plan.gradients, processes),
        _share(moments, plan.optimizer, processes),
        gradient * trained if plan.buckets and processes > 1 else 0,
    )


def _gathered(shape: ModelShape) -> int:
    """Parameters that are whole at once where blocks are gathered one by one: two blocks, embeddings and head."""
    return min(GATHERED_BLOCKS, shape.layers) * shape.block + shape.embedding + shape.head


def _share(total: int, divided: bool, processes: int) -> int:
    return -(-total // processes) if divided else total


def bytes_per_parameter(training: Training) -> dict[str, int]:
    """The derivation in the module's first lines as numbers, of a matrix that is trained whole."""
    moments = 1 if training.optimizer == "muon" else 2
    parts = {"weights": WEIGHT, "bfloat16 copy": 2, "gradient": GRADIENT, "moments": moments * MOMENT}
    return parts if training.precision == "bfloat16" else {k: v for k, v in parts.items() if k != "bfloat16 copy"}
