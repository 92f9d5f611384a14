"""How many devices a model needs, and what tensor and pipeline parallelism would divide: arithmetic on shapes.

A card's GB are counted as 10⁹ bytes: 80 GB are 74.5 GiB. Drivers report up to 7 % more, which is left to the CUDA
context and to fragmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, ceil_div, trained_state
from rlhf_lab.memory.work import Arithmetic, Pass, Rows, rooted_pass, train_pass, update_peak

GIB, CARD_GB = 2**30, 10**9
CARDS = (8, 16, 24, 40, 80, 141)
"""GB of memory of common GPUs."""
MOST_DEVICES = 64
"""Beyond this the plan gives up: what a process holds besides its share is not known well enough."""
TENSOR = (1, 2, 4, 8)
"""Degrees of tensor parallelism, which stays within one machine."""


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
    """Bytes of a device that holds its layers of the pipeline, and the embedding, last norm and head, all divided by
    tensor parallelism. In a pipeline no device has both ends of the model, so this is an upper bound on the first.

    Matrices and what they multiply are divided, norms and the residual stream are not (arXiv:1909.08053). In a
    one-forward-one-backward schedule the first stage keeps the activations of as many micro-batches as there are stages
    (arXiv:2104.04473), so pipelining divides the model and not the activations.
    """
    device_shape = _shape_on_device(shape, tensor, pipeline)
    state = trained_state(device_shape, training)
    how = Arithmetic(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = train_pass(device_shape, rows, how, training)
    waiting = (pipeline - 1) * work.activations
    return state.always + waiting + update_peak([work], state.copy, state.gradients, accumulates=True)


def _shape_on_device(shape: ModelShape, tensor: int, pipeline: int) -> ModelShape:
    """The layers of one pipeline stage with heads, MLP and vocabulary divided."""
    return replace(
        shape,
        layers=ceil_div(shape.layers, pipeline),
        heads=ceil_div(shape.heads, tensor),
        kv_heads=ceil_div(shape.kv_heads, tensor),
        mlp=ceil_div(shape.mlp, tensor),
        vocabulary=ceil_div(shape.vocabulary, tensor),
    )


def smallest_split(shape: ModelShape, rows: Rows, training: Training, card_bytes: int) -> Split | None:
    """The split with the fewest devices that fits, the least pipelining first; None where none does."""
    pipelines: Sequence[int] = [stages for stages in range(1, shape.layers + 1) if shape.layers % stages == 0]
    tensors = [degree for degree in TENSOR if shape.heads % degree == 0]
    splits = [(tensor, pipeline) for tensor in tensors for pipeline in pipelines]
    for tensor, pipeline in sorted(splits, key=lambda split: (split[0] * split[1], split[1])):
        needed = split_bytes(shape, rows, training, tensor, pipeline)
        if needed <= card_bytes:
            return Split(tensor, pipeline, needed)
    return None
