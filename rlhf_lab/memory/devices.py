"""Memory of the devices of this machine, and the number of devices that a model needs, calculated from its shape.

A card's GB are 10⁹ bytes: 80 GB are 74.5 GiB. Drivers report up to 7 % more, which is left for the CUDA context and for
fragmentation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from rlhf_lab.config.root import Config
from rlhf_lab.core import ranks
from rlhf_lab.core.machine import GIB, GPU_JOBS, PROCESSES, main_memory
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, ceil_div, trained_state
from rlhf_lab.memory.work import ComputePrecision, Pass, Rows, rooted_pass, train_pass, update_peak
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.launch.processes import run_side_by_side

CARD_GB = 10**9
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
    counts = (2**power for power in range(MOST_DEVICES.bit_length()))
    return next((count for count in counts if update_bytes(shape, rows, training, strategy, count) <= card_bytes), None)


def split_bytes(shape: ModelShape, rows: Rows, training: Training, tensor: int, pipeline: int) -> int:
    """Return the bytes of one device under tensor and pipeline parallelism.

    The device holds its layers of the pipeline, and the embedding, last norm and head, all sharded by tensor
    parallelism. This is an upper bound, because no device of a pipeline has both the embedding and the head.

    Matrices and the activations that they produce are sharded, norms and the residual stream are not
    (arXiv:1909.08053). In a one-forward-one-backward schedule the first stage keeps the activations of as many
    micro-batches as there are stages (arXiv:2104.04473), so a pipeline does not reduce its activations.
    """
    # a smaller model stands for the part of one device: layers of a pipeline stage, sharded heads, MLP and vocabulary
    device_shape = replace(
        shape,
        layers=ceil_div(shape.layers, pipeline),
        heads=ceil_div(shape.heads, tensor),
        kv_heads=ceil_div(shape.kv_heads, tensor),
        mlp=ceil_div(shape.mlp, tensor),
        vocabulary=ceil_div(shape.vocabulary, tensor),
    )
    state = trained_state(device_shape, training)
    how = ComputePrecision(training.precision, checkpointing=training.checkpointing, cuda=True)
    work = train_pass(device_shape, rows, how, training)
    waiting = (pipeline - 1) * work.activations
    # the first stage keeps the activations of the micro-batches that wait for their backward pass
    peak = update_peak([work], state.copy, state.gradients, accumulates=True)
    return state.resident_bytes + waiting + peak


def smallest_split(shape: ModelShape, rows: Rows, training: Training, card_bytes: int) -> tuple[int, int] | None:
    """Return (tensor, pipeline) of the split with the fewest devices that fits; None if no split fits.

    Among splits over equally many devices, less pipelining is preferred.
    """
    # layers are split evenly, and each device holds complete attention heads
    pipelines = [stages for stages in range(1, shape.layers + 1) if shape.layers % stages == 0]
    tensors = [degree for degree in TENSOR if shape.heads % degree == 0]
    splits = [(tensor, pipeline) for tensor in tensors for pipeline in pipelines]
    splits.sort(key=lambda split: (split[0] * split[1], split[1]))
    return next((split for split in splits if split_bytes(shape, rows, training, *split) <= card_bytes), None)


CUDA_CONTEXT = 700 * 2**20
"""Bytes of GPU memory that CUDA itself and its libraries use in each process."""


@dataclass(frozen=True)
class Device:
    """The device on which each process of a stage computes.

    Attributes:
        memory: bytes of the device; None if unknown.
        count: number of devices of this kind on the machine; processes on a CPU share its memory.
        cuda: True for a GPU.
        jobs: number of jobs of a study that use the device at the same time.
        local: processes per machine if a launcher started them; 0 without one, when all are on this machine.
        supposed: True for a hypothetical device: `runtime.memory_gib` sets its memory, and a plan may use any number.
    """

    name: str
    memory: int | None
    count: int = 1
    cuda: bool = False
    jobs: int = 1
    local: int = 0
    supposed: bool = False

    @property
    def limit(self) -> int:
        """Maximum number of devices that a suggestion may use."""
        if not self.cuda:
            return 1
        return MOST_DEVICES if self.supposed else self.count

    def share(self, processes: int) -> int | None:
        """Return the bytes available to one of `processes` processes; None if unknown."""
        if self.memory is None:
            return None
        # each process has its own GPU, but the processes on a CPU share the machine's memory
        sharers = 1 if self.cuda else min(processes, self.local or processes)
        return self.memory // (sharers * self.jobs)


def device(checked: Config) -> Device:
    """Return the device that a config runs on. Imports torch."""
    import torch

    cuda = ranks.device(checked.runtime.device).startswith("cuda")
    memory_gib = checked.runtime.memory_gib
    configured = None if memory_gib is None else int(memory_gib * GIB)
    name, memory, count = "this machine", configured, 1
    if cuda and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        count = torch.cuda.device_count()
        memory = configured or torch.cuda.get_device_properties(0).total_memory - CUDA_CONTEXT
    elif configured is not None:
        name = "runtime.memory_gib"
    elif not cuda:
        main = main_memory()
        memory = main.total if main else None
    rollout = checked.rollout
    if cuda and memory is not None and isinstance(rollout, Vllm) and rollout.starts_server:
        memory -= int(memory * rollout.gpu_memory_utilization)  # of the server on the same GPU
    # set by the study that runs several jobs at the same time; they share the main memory, but may have a GPU each
    jobs = int((cuda and os.environ.get(GPU_JOBS)) or os.environ.get(PROCESSES, "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) if ranks.launched() > 1 else 0
    return Device(name, memory, count, cuda, jobs, local, supposed=configured is not None)


def processes(checked: Config, machine: Device) -> int:
    """Return the number of processes that train a stage together, on all machines of a launcher."""
    return run_side_by_side(checked, machine.count if machine.cuda else 0)
