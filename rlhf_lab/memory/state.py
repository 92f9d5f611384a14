"""Memory of a model between steps: bytes per parameter, and how a strategy shards them over processes.

For a parameter that is trained under bfloat16 autocast:

    weights 4 (float32) + copy for the matmuls 2 (bfloat16) + gradient 4 + Adam's two moments 4 + 4 = 18 bytes

In float32 there is no copy: 16 bytes. Muon keeps one moment of a hidden matrix: 14 and 12. A frozen model has only its
weights.

For P parameters on N processes, R of them outside the blocks (embeddings, last norm, head):

    ddp             18P: gradients are views of the communication buckets, which are kept between steps
    fsdp_grad_op    16P/N + 2(P − R) + 4R: blocks are gathered in bfloat16, the rest in float32
    fsdp_full       16P/N + 4R and 2 bytes per parameter of the blocks that compute
    zero1, 2, 3     10P + 12P/N, 6P + 16P/N, 20P/N and gathered blocks (arXiv:1910.02054): the optimizer has its own
                    float32 weights, and those of the model are float32 too
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.models.settings import Stored
from rlhf_lab.training.sharding.settings import BUCKET

Precision = Literal["float32", "bfloat16"]
WEIGHT, GRADIENT, MOMENT = 4, 4, 4
NF4 = 0.5 + (1 + 4 / 256) / 64
"""Bytes per number: half a byte, one byte of scale per 64 numbers, four bytes per 256 scales (arXiv:2305.14314)."""
MOMENT_8BIT = 1 + 4 / 256
"""Bytes per number: one byte, and four bytes of scale per 256 numbers (arXiv:2110.02861)."""
GATHERED_BLOCKS = 2
"""Number of blocks whose gathered parameters exist at the same time: the one that computes and the next one."""


@dataclass(frozen=True)
class State:
    """Bytes of one model on one process.

    Attributes:
        weights: bytes of the weights in their storage dtype.
        copy: bytes of the weights' copy in the dtype of the matmuls or gathered from other processes, and of
            DeepSpeed's bucket.
        gradients, optimizer: bytes of the trained parameters' gradients, and of their optimizer state.
        stays: True if the memory of the gradients is kept between steps.
    """

    weights: int
    copy: int = 0
    gradients: int = 0
    optimizer: int = 0
    stays: bool = False

    @property
    def resident_bytes(self) -> int:
        """Bytes in use from the second step on, at any time."""
        return self.weights + self.optimizer + self.gradients * self.stays

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that exist only from the backward pass to the optimizer step."""
        return self.gradients * (not self.stays)

    @property
    def total(self) -> int:
        return self.weights + self.copy + self.gradients + self.optimizer


@dataclass(frozen=True)
class Training:
    """Settings of the training of a model.

    Attributes:
        precision: dtype of the forward pass.
        optimizer: `adamw`, or `muon` for hidden matrices with AdamW for all other parameters.
        rank: rank of a LoRA adapter; 0 trains all parameters.
        targets: names of the adapted layers, matched at their end; None is all linear layers of the blocks.
        checkpointing: True if only the inputs of blocks are kept.
        stored: storage of the weights that an adapter is trained on; below float32, passes are in bfloat16. A fully
            trained model has float32 weights.
    """

    precision: Precision = "float32"
    optimizer: Literal["adamw", "muon", "adamw_8bit"] = "adamw"
    rank: int = 0
    targets: Sequence[str] | None = None
    checkpointing: bool = False
    stored: Stored = "float32"

    def trained(self, shape: ModelShape) -> int:
        """Return the number of parameters with a gradient: all, or those of an adapter and a new scalar head."""
        if not self.rank:
            return shape.parameters
        return shape.adapter(self.rank, self.targets) + shape.outputs * shape.hidden

    def moments(self, shape: ModelShape) -> int:
        """Return the number of values in the optimizer state."""
        trained = self.trained(shape)
        if self.optimizer != "muon":
            return 2 * trained
        full = shape.hidden_matrices - shape.layers * shape.expert_weights  # 3-D expert weights are left to AdamW
        hidden = shape.adapter(self.rank, self.targets) if self.rank else full
        return hidden + 2 * (trained - hidden)


@dataclass(frozen=True)
class Strategy:
    """State that N processes shard.

    Attributes:
        weights, gradients, optimizer: True if each process holds 1/N of them.
        gathered: part of sharded weights that is full at the same time: the `model` or some `blocks`.
        rooted: True if, in an update, parameters outside the blocks stay gathered in float32 with full gradients
            (FSDP2).
        views: True if gradients are views of permanent buffers (DDP).
        master: True if the optimizer holds its own float32 weights (DeepSpeed).
    """

    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    gathered: Literal["", "model", "blocks"] = ""
    rooted: bool = False
    views: bool = False
    master: bool = False


STRATEGIES = {
    "none": Strategy(),
    "ddp": Strategy(views=True),
    "fsdp_grad_op": Strategy(True, True, True, "model", rooted=True),
    "fsdp_full": Strategy(True, True, True, "blocks", rooted=True),
    "zero1": Strategy(optimizer=True, master=True),
    "zero2": Strategy(gradients=True, optimizer=True, master=True),
    "zero3": Strategy(True, True, True, "blocks", master=True),
}
"""Kind of `sharding` → the parts of a model's state that it shards."""


def weight_bytes(shape: ModelShape, stored: Stored) -> int:
    """Return the bytes of weights that are not trained, stored as in `model.weights`; see `models/weights.py`."""
    # only matrices are stored in lower precision
    vectors = shape.parameters - shape.hidden_matrices - shape.outer_matrices  # norms, biases, a scalar head
    per_number = {"float32": WEIGHT, "bfloat16": 2.0, "nf4": NF4}[stored]
    # bitsandbytes packs the layers of the blocks only, so nf4 stores all other matrices in bfloat16
    outer = WEIGHT if stored == "float32" else 2
    blocks = round(per_number * shape.hidden_matrices)
    return blocks + outer * shape.outer_matrices + WEIGHT * vectors


def frozen_state(shape: ModelShape, *, halved: bool = False, stored: Stored = "float32") -> State:
    """Return the state of a model that only scores; with `halved`, its blocks are stored in bfloat16."""
    saved = halved * 2 * shape.layers * shape.block  # two of four bytes per number
    return State(weight_bytes(shape, stored) - saved)


def trained_state(
    shape: ModelShape, training: Training, strategy: str = "none", processes: int = 1, *, beside: int | None = None
) -> State:
    """Return the bytes that one process needs for a model that is trained.

    Only matrices that multiply hidden states have a copy in the dtype of the matmuls. Activation checkpointing creates
    that copy anew for one block, or the head, at a time.

    Args:
        beside: number of frozen values of an adapter on the base of another model; None if it has its own base.
    """
    # one process shards nothing, whatever its strategy
    plan = STRATEGIES[strategy if processes > 1 else "none"]
    trained = training.trained(shape)
    adapter = WEIGHT * trained if training.rank else 0
    frozen = weight_bytes(shape, training.stored) if beside is None else WEIGHT * beside
    weights = adapter + frozen
    moment = MOMENT_8BIT if training.optimizer == "adamw_8bit" else MOMENT
    optimizer = round(moment * training.moments(shape))
    if plan.master:
        optimizer += WEIGHT * trained
    copy = 0
    if training.precision == "bfloat16":
        if plan.rooted:
            blocks = 0  # FSDP2 gathers blocks in bfloat16 already
        elif training.checkpointing:
            blocks = 1
        else:
            blocks = shape.layers
        frozen_blocks = shape.layers - blocks
        copy = 2 * (shape.multiplied - frozen_blocks * shape.block_matrices)
        if training.rank and training.stored != "float32":
            # bfloat16 weights need no copy, and 4-bit layers are dequantised one at a time
            largest = max(inputs * outputs for inputs, outputs in shape.matrices.values())
            copy = 2 * largest
            copy *= training.stored == "nf4"
    if plan.gathered:
        copy += gathered_bytes(shape, strategy, training.precision)
    if plan.master:
        copy += GRADIENT * min(BUCKET, trained)
    return State(
        weights=_fraction(weights, plan.weights, processes),
        copy=copy,
        gradients=_fraction(GRADIENT * trained, plan.gradients, processes),
        optimizer=_fraction(optimizer, plan.optimizer, processes),
        stays=plan.views,
    )


def gathered_bytes(shape: ModelShape, strategy: str, precision: Precision) -> int:
    """Return the bytes of a sharded model's weights that are full at the same time in a pass.

    FSDP2 gathers blocks in the dtype of training. Everything else is gathered in float32.
    """
    plan = STRATEGIES[strategy]
    blocks = shape.layers if plan.gathered == "model" else min(GATHERED_BLOCKS, shape.layers)
    block_weight = 2 if plan.rooted and precision == "bfloat16" else WEIGHT
    return block_weight * blocks * shape.block + WEIGHT * shape.root


def ceil_div(total: int, divisor: int) -> int:
    """Return total / divisor, rounded up."""
    return -(-total // divisor)


def _fraction(total: int, sharded: bool, processes: int) -> int:
    """Return the bytes of one process: 1/N of a sharded quantity, otherwise the total."""
    return ceil_div(total, processes) if sharded else total


def bytes_per_parameter(training: Training, *, master: bool = False) -> dict[str, int]:
    """Return the terms of this module's docstring for a fully trained matrix, without the scales of 8-bit moments.

    Args:
        master: True if the optimizer has its own float32 weights (`Strategy.master`).
    """
    moments = {"adamw": 2 * MOMENT, "muon": MOMENT, "adamw_8bit": 2}
    sizes = {"weights": WEIGHT}
    if training.precision == "bfloat16":
        sizes["bfloat16 copy"] = 2
    sizes |= {"gradient": GRADIENT, "moments": moments[training.optimizer]}
    if master:
        sizes["weights of the optimizer"] = WEIGHT
    return sizes
