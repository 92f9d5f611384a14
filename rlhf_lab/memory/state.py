"""What a model holds between steps: bytes per parameter, and how a strategy divides them between processes.

The derivation, per parameter that is trained in bfloat16 autocast:

    weights 4 (float32) + copy for the matmuls 2 (bfloat16) + gradient 4 + Adam's two moments 4 + 4 = 18 bytes

In float32 there is no copy: 16. Muon keeps one moment of a hidden matrix: 14 and 12. A frozen model is its weights.

Of P parameters on N processes, R of them outside the blocks (embeddings, last norm, head):

    ddp             18P: gradients are views of the buckets through which they are exchanged, which stay between steps
    fsdp_grad_op    16P/N + 2(P − R) + 4R: blocks are gathered in bfloat16, the rest in float32
    fsdp_full       16P/N + 4R and 2 bytes of the blocks at work
    zero1, 2, 3     10P + 12P/N, 6P + 16P/N, 20P/N and gathered blocks (arXiv:1910.02054): the optimiser has float32
                    weights of its own, and those of the model are float32 too
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
"""Half a byte a number; 64 numbers share a scale of a byte, and 256 scales one of four bytes (arXiv:2305.14314)."""
MOMENT_8BIT = 1 + 4 / 256
"""A byte a number; 256 of them share a scale of four bytes (arXiv:2110.02861)."""
GATHERED_BLOCKS = 2
"""Blocks whose gathered parameters exist at once: the one that computes and the next."""


@dataclass(frozen=True)
class State:
    """Bytes of one model on one process.

    Attributes:
        weights: as they are stored.
        copy: of the weights in the arithmetic of the matmuls, or gathered from the other processes; DeepSpeed's bucket.
        gradients, optimizer: of the trained parameters.
        stays: whether the gradients' memory is kept between steps.
    """

    weights: int
    copy: int = 0
    gradients: int = 0
    optimizer: int = 0
    stays: bool = False

    @property
    def always(self) -> int:
        """Bytes in use from the second step on, whatever is computed."""
        return self.weights + self.optimizer + self.gradients * self.stays

    @property
    def passing(self) -> int:
        """Bytes of gradients that exist only from the backward pass to the step."""
        return self.gradients * (not self.stays)

    @property
    def total(self) -> int:
        return self.weights + self.copy + self.gradients + self.optimizer


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Args:
        precision: arithmetic of the forward pass.
        optimizer: `adamw`, or `muon` for hidden matrices with AdamW for the rest.
        rank: of a LoRA adapter; 0 trains all parameters.
        targets: ends of the adapted layers' names; None is all linear layers of the blocks.
        checkpointing: only the inputs of blocks are kept.
        stored: weights that an adapter is trained on; below float32, passes are in bfloat16. Those of a model that is
            trained as a whole are float32.
    """

    precision: Precision = "float32"
    optimizer: Literal["adamw", "muon", "adamw_8bit"] = "adamw"
    rank: int = 0
    targets: Sequence[str] | None = None
    checkpointing: bool = False
    stored: Stored = "float32"

    def trained(self, shape: ModelShape) -> int:
        """Parameters with a gradient: all, or the adapter and a new scalar head."""
        if not self.rank:
            return shape.parameters
        return shape.adapter(self.rank, self.targets) + shape.outputs * shape.hidden

    def moments(self, shape: ModelShape) -> int:
        """Numbers that the optimiser keeps."""
        trained = self.trained(shape)
        if self.optimizer != "muon":
            return 2 * trained
        whole = shape.hidden_matrices - shape.layers * shape.expert_weights  # of three dimensions: AdamW's
        hidden = shape.adapter(self.rank, self.targets) if self.rank else whole
        return hidden + 2 * (trained - hidden)


@dataclass(frozen=True)
class Strategy:
    """What N processes divide between them.

    Attributes:
        weights, gradients, optimizer: whether each process holds 1/N of them.
        gathered: how much of divided weights is whole at once: the `model` or some `blocks`.
        rooted: in an update, parameters outside the blocks stay gathered in float32, with whole gradients (FSDP2).
        views: gradients are views of buffers that stay (DDP).
        master: the optimiser holds float32 weights of its own (DeepSpeed).
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
"""`sharding=…` → what it divides."""


def weight_bytes(shape: ModelShape, stored: Stored) -> int:
    """Bytes of weights that are not trained, as `model.weights` stores them; see `models/weights.py`."""
    vectors = shape.parameters - shape.hidden_matrices - shape.outer_matrices  # norms, biases, a scalar head
    per_number = {"float32": WEIGHT, "bfloat16": 2.0, "nf4": NF4}[stored]
    outer = WEIGHT if stored == "float32" else 2
    return round(per_number * shape.hidden_matrices) + outer * shape.outer_matrices + WEIGHT * vectors


def frozen_state(shape: ModelShape, *, halved: bool = False, stored: Stored = "float32") -> State:
    """A model that only scores; `halved`, its blocks are held in bfloat16."""
    return State(weight_bytes(shape, stored) - halved * 2 * shape.layers * shape.block)


def trained_state(
    shape: ModelShape, training: Training, strategy: str = "none", processes: int = 1, *, beside: int | None = None
) -> State:
    """One process's bytes of a model that is trained.

    Args:
        beside: frozen numbers of an adapter that lies on the base of another model; None for a base of its own.

    Only matrices that hidden states are multiplied by have a copy in the arithmetic of the matmuls; with activation
    checkpointing, which makes it again, one block's and the head's at a time.
    """
    plan = STRATEGIES[strategy if processes > 1 else "none"]
    trained = training.trained(shape)
    adapter = WEIGHT * trained if training.rank else 0
    weights = adapter + (weight_bytes(shape, training.stored) if beside is None else WEIGHT * beside)
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
        copy = 2 * (shape.multiplied - (shape.layers - blocks) * shape.block_matrices)
        if training.rank and training.stored != "float32":
            # what is stored in bfloat16 needs no copy, and of four bits one layer at a time is numbers
            copy = 2 * max(inputs * outputs for inputs, outputs in shape.matrices.values())
            copy *= training.stored == "nf4"
    if plan.gathered:
        copy += gathered_bytes(shape, strategy, training.precision)
    if plan.master:
        copy += GRADIENT * min(BUCKET, trained)
    return State(
        weights=_share(weights, plan.weights, processes),
        copy=copy,
        gradients=_share(GRADIENT * trained, plan.gradients, processes),
        optimizer=_share(optimizer, plan.optimizer, processes),
        stays=plan.views,
    )


def gathered_bytes(shape: ModelShape, strategy: str, precision: Precision) -> int:
    """Bytes of a divided model's weights that are whole at once in a pass.

    Under FSDP2 blocks are gathered in the arithmetic of training; everything else is gathered in float32.
    """
    plan = STRATEGIES[strategy]
    blocks = shape.layers if plan.gathered == "model" else min(GATHERED_BLOCKS, shape.layers)
    block_weight = 2 if plan.rooted and precision == "bfloat16" else WEIGHT
    return block_weight * blocks * shape.block + WEIGHT * shape.root


def ceil_div(total: int, divisor: int) -> int:
    """total / divisor, rounded up."""
    return -(-total // divisor)


def _share(total: int, divided: bool, processes: int) -> int:
    """Bytes of one process."""
    return ceil_div(total, processes) if divided else total


def bytes_per_parameter(training: Training) -> dict[str, int]:
    """The derivation in this module's docstring as numbers, for a matrix that is trained whole."""
    moments = 1 if training.optimizer == "muon" else 2
    sizes = {"weights": WEIGHT, "bfloat16 copy": 2, "gradient": GRADIENT, "moments": moments * MOMENT}
    if training.precision != "bfloat16":
        del sizes["bfloat16 copy"]
    return sizes
