"""How many devices a model needs, and what tensor and pipeline parallelism would divide: arithmetic on shapes.

A card's GB are counted as 10⁹ bytes: 80 GB are 74.5 GiB. Drivers report up to 7 % more, which is left to the CUDA
context and to fragmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, trained_state
from rlhf_lab.memory.work import Arithmetic, Pass, Rows, rooted_pass, train_pass, update_peak

GIB, CARD_GB = 2**30, 10**9
CARDS = (8, 16, 24, 40, 80, 141)
"""GB of memory of cards in use."""
MOST_DEVICES = 64
"""More are not counted: what a process holds beside its share is not certain enough."""
TENSOR = (1, 2, 4, 8)
"""Ways to divide a block's matrices: within one machine."""


def work_of(
    shape: ModelShape, rows: Rows, how: Arithmetic, training: Training, strategy: str = "none", processes: int = 1
) -> Pass:
    """A micro-batch's forward and backward pass under a strategy."""
    work = train_pass(shape, rows, how, training)
    rooted = processes > 1 and STRATEGIES[strategy].rooted
    return rooted_pass(work, shape, how, training) if rooted else work


def update_bytes(shape: ModelShape, rows: Rows, training: Training, strategy: str, processes: int) -> int:
    """Most bytes of one process in an update on `rows` of its own, all of the model included."""
    state = trained_state(shape, training, strategy, processes)
    how = Arithmetic(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = work_of(shape, rows, how, training, strategy, processes)
    return state.always + update_peak([work], state.copy, state.passing, accumulates=True)


def smallest_count(shape: ModelShape, rows: Rows, training: Training, strategy: str, card_bytes: int) -> int | None:
    """Smallest power of two of processes whose share fits into a card; None where not even `MOST_DEVICES` do."""
    count = 1
    while count <= MOST_DEVICES:
        if update_bytes(shape, rows, training, strategy, count) <= card_bytes:
            return count
        count *= 2
    return None


@dataclass(frozen=True)
class Split:
    """A model divided over tensor · pipeline devices.

    Attributes:
        bytes: of the fullest device.
    """

    tensor: int
    pipeline: int
    bytes: int


def split_bytes(shape: ModelShape, rows: Rows, training: Training, tensor: int, pipeline: int) -> int:
    """Bytes of a device with its part of the layers, the embedding, the last norm and the head, all divided by tensor
    parallelism. With a pipeline no device has both ends of the model: this is an upper bound on the first.

    Matrices and what they multiply are divided, norms and the residual stream are not (arXiv:1909.08053). In a
    one-forward-one-backward schedule the first stage keeps the activations of as many micro-batches as there are stages
    (arXiv:2104.04473), so pipelining divides the model and not the activations.
    """
    part = _part(shape, tensor, pipeline)
    state = trained_state(part, training)
    how = Arithmetic(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = train_pass(part, rows, how, training)
    waiting = (pipeline - 1) * work.activations
    return state.always + waiting + update_peak([work], state.copy, state.gradients, accumulates=True)


def _part(shape: ModelShape, tensor: int, pipeline: int) -> ModelShape:
    """The layers of one pipeline stage with heads, MLP and vocabulary divided."""
    return replace(
        shape,
        layers=-(-shape.layers // pipeline),
        heads=-(-shape.heads // tensor),
        kv_heads=-(-shape.kv_heads // tensor),
        mlp=-(-shape.mlp // tensor),
        vocabulary=-(-shape.vocabulary // tensor),
    )


def smallest_split(shape: ModelShape, rows: Rows, training: Training, card_bytes: int) -> Split | None:
    """The split with the fewest devices that fits, the least pipelining first; None where none does."""
    pipelines: Sequence[int] = [p for p in range(1, shape.layers + 1) if shape.layers % p == 0]
    tensors = [t for t in TENSOR if shape.heads % t == 0]
    for tensor, pipeline in sorted(((t, p) for t in tensors for p in pipelines), key=lambda s: (s[0] * s[1], s[1])):
        needed = split_bytes(shape, rows, training, tensor, pipeline)
        if needed <= card_bytes:
            return Split(tensor, pipeline, needed)
    return None
