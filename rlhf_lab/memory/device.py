"""Memory available to a process: that of the GPU, of the machine, or `runtime.memory_gib`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_lab.config.root import Config
from rlhf_lab.core import ranks
from rlhf_lab.core.machine import GPU_JOBS, PROCESSES, main_memory
from rlhf_lab.memory.devices import GIB, MOST_DEVICES
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.launch.processes import run_side_by_side

CUDA_CONTEXT = 700 * 2**20
"""Bytes of GPU memory that CUDA itself and its libraries use in each process."""


@dataclass(frozen=True)
class Device:
    """The device on which each process of a stage computes.

    Attributes:
        name: name in messages.
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
    # a vLLM server on the same GPU keeps its fraction of the memory
    if cuda and memory is not None:
        memory -= int(memory * _vllm_memory_fraction(checked))
    # set by the study that runs several jobs at the same time; they share the main memory, but may have a GPU each
    jobs = int((cuda and os.environ.get(GPU_JOBS)) or os.environ.get(PROCESSES, "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) if ranks.launched() > 1 else 0
    return Device(name, memory, count, cuda, jobs, local, supposed=configured is not None)


def _vllm_memory_fraction(checked: Config) -> float:
    """Return the fraction of a GPU used by a vLLM server that rlhf_lab starts next to training."""
    rollout = checked.rollout
    return rollout.gpu_memory_utilization if isinstance(rollout, Vllm) and rollout.starts_server else 0.0


def processes(checked: Config, machine: Device) -> int:
    """Return the number of processes that train a stage together, on all machines of a launcher."""
    return run_side_by_side(checked, machine.count if machine.cuda else 0)
