"""How much memory a process may use: the GPU's, the machine's, or what `runtime.memory_gib` says."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_lab.config.root import Config
from rlhf_lab.core import ranks
from rlhf_lab.core.machine import PROCESSES, main_memory
from rlhf_lab.memory.devices import GIB, MOST_DEVICES
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.stages.launch.processes import together

CUDA_CONTEXT = 700 * 2**20
"""Bytes of a GPU that a process has for CUDA itself and its libraries."""


@dataclass(frozen=True)
class Device:
    """The device that each process of a stage computes on.

    Attributes:
        name: shown in messages.
        memory: bytes of the device; None where the system does not say.
        count: devices of this kind on the machine; processes on a CPU share its memory.
        cuda: whether it is a GPU.
        jobs: of a study that share it at the same time.
        local: processes per machine where a launcher started them; 0 without one, when all are on this machine.
        supposed: the device is hypothetical: `runtime.memory_gib` gives its memory, and a plan may use any number.
    """

    name: str
    memory: int | None
    count: int = 1
    cuda: bool = False
    jobs: int = 1
    local: int = 0
    supposed: bool = False

    @property
    def most(self) -> int:
        """Devices that advice may ask for."""
        if not self.cuda:
            return 1
        return MOST_DEVICES if self.supposed else self.count

    def share(self, processes: int) -> int | None:
        """Bytes that one of `processes` processes has; None where the system does not say."""
        if self.memory is None:
            return None
        # Each process has a GPU of its own, but the processes on a CPU share the machine's memory.
        sharers = 1 if self.cuda else min(processes, self.local or processes)
        return self.memory // (sharers * self.jobs)


def device(checked: Config) -> Device:
    """The device that a config runs on. Imports torch."""
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
    if cuda and memory is not None:
        memory -= int(memory * _share_of_vllm(checked))
    jobs = int(os.environ.get(PROCESSES, "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) if ranks.launched() > 1 else 0
    return Device(name, memory, count, cuda, jobs, local, supposed=configured is not None)


def _share_of_vllm(checked: Config) -> float:
    """Share of a GPU that a server takes which the lab starts beside training."""
    rollout = checked.rollout
    return rollout.gpu_memory_utilization if isinstance(rollout, Vllm) and rollout.starts_server else 0.0


def processes(checked: Config, machine: Device) -> int:
    """Processes that train a stage together, on all machines where a launcher started them."""
    return together(checked, machine.count if machine.cuda else 0)
