"""Number of devices that a model needs, and effect of tensor and pipeline parallelism, calculated from shapes.

A card's GB are 10⁹ bytes: 80 GB are 74.5 GiB. Drivers report up to 7 % more, which is left for the CUDA context and for
fragmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, ceil_div, trained_state
from rlhf_lab.memory.work import ComputePrecision, Pass, Rows, rooted_pass, train_pass, update_peak

GIB, CARD_GB = 2**30, 10**9
CARDS = (8, 16, 24, 40, 80, 141)
"""Memory of common GPUs in GB."""
MOST_DEVICES = 64
"""Maximum number of devices of a plan. With more devices, the estimate of memory outside the shards is inaccurate."""
TENSOR = (1, 2, 4, 8)
"""Degrees of tensor parallelism, which is limited to one machine."""


def work_of(
    shape: ModelShape, rows: Rows, how: ComputePrecision, training: Training, strategy: str = "none", processes: int = 1
) -> Pass:
    """Return the bytes of a micro-batch's forward and backward pass under a strategy."""
    work = train_pass(shape, rows, how, training)
    rooted = processes > 1 and STRATEGIES[strategy].rooted
    return rooted_pass(work, shape, how, training) if rooted else work


def update_bytes(shape: ModelShape, rows: Rows, training: Training, strategy: str, processes: int) -> int:
    """Return the peak of one process in an update on its own `rows`, including the entire model state."""
    state = trained_state(shape, training, strategy, processes)
    how = ComputePrecision(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = work_of(shape, rows, how, training, strategy, processes)
    return state.resident_bytes + update_peak([work], state.copy, state.gradient_bytes, accumulates=True)


def smallest_count(shape: ModelShape, rows: Rows, training: Training, strategy: str, card_bytes: int) -> int | None:
    """Return the minimum number of cards on which the update fits, a power of two; None above `MOST_DEVICES`."""
    count = 1
    while count <= MOST_DEVICES:
        if update_bytes(shape, rows, training, strategy, count) <= card_bytes:
            return count
        count *= 2
    return None


@dataclass(frozen=True)
class ModelParallelism:
    """A model split over tensor · pipeline devices.

    Attributes:
        bytes: memory of the device with the highest demand.
    """

    tensor: int
    pipeline: int
    bytes: int


def split_bytes(shape: ModelShape, rows: Rows, training: Training, tensor: int, pipeline: int) -> int:
    """Return the bytes of one device under tensor and pipeline parallelism.

    The device holds its layers of the pipeline, and the embedding, last norm and head, all sharded by tensor
    parallelism. This is an upper bound, because no device of a pipeline has both the embedding and the head.

    Matrices and the activations that they produce are sharded, norms and the residual stream are not
    (arXiv:1909.08053). In a one-forward-one-backward schedule the first stage keeps the activations of as many
    micro-batches as there are stages (arXiv:2104.04473), so a pipeline does not reduce its activations.
    """
    # a smaller model stands for the part of one device
    device_shape = _shape_on_device(shape, tensor, pipeline)
    state = trained_state(device_shape, training)
    how = ComputePrecision(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = train_pass(device_shape, rows, how, training)
    waiting = (pipeline - 1) * work.activations
    # the first stage keeps the activations of the micro-batches that wait for their backward pass
    peak = update_peak([work], state.copy, state.gradients, accumulates=True)
    return state.resident_bytes + waiting + peak


def _shape_on_device(shape: ModelShape, tensor: int, pipeline: int) -> ModelShape:
    """Return the shape of one pipeline stage's layers with heads, MLP and vocabulary sharded."""
    return replace(
        shape,
        layers=ceil_div(shape.layers, pipeline),
        heads=ceil_div(shape.heads, tensor),
        kv_heads=ceil_div(shape.kv_heads, tensor),
        mlp=ceil_div(shape.mlp, tensor),
        vocabulary=ceil_div(shape.vocabulary, tensor),
    )


def smallest_split(shape: ModelShape, rows: Rows, training: Training, card_bytes: int) -> ModelParallelism | None:
    """Return the split with the fewest devices that fits, preferring less pipelining; None if no split fits."""
    # layers are split evenly, and each device holds complete attention heads
    stage_counts = range(1, shape.layers + 1)
    pipelines = [stages for stages in stage_counts if shape.layers % stages == 0]
    tensors = [degree for degree in TENSOR if shape.heads % degree == 0]
    splits = [(tensor, pipeline) for tensor in tensors for pipeline in pipelines]
    splits.sort(key=lambda split: (split[0] * split[1], split[1]))
    for tensor, pipeline in splits:
        needed = split_bytes(shape, rows, training, tensor, pipeline)
        if needed <= card_bytes:
            return ModelParallelism(tensor, pipeline, needed)
    return None
