"""How much memory a process may use: the GPU's, the machine's, or what `runtime.memory_gib` says."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_lab.config.root import Config
from rlhf_lab.core import ranks
from rlhf_lab.core.machine import PROCESSES, main_memory
from rlhf_lab.memory.devices import GIB, MOST_DEVICES
from rlhf_lab.stages.launch.processes import together


@dataclass(frozen=True)
class Device:
    """Where the processes of a stage compute.

    Attributes:
        name: for people.
        memory: bytes of the device; None where the system does not say.
        count: devices of this kind on the machine; processes on a CPU share its memory.
        cuda: whether it is a GPU.
        jobs: of a study that share it at the same time.
        local: processes per machine where a launcher started them; 0 without one, when all are on this machine.
        supposed: its memory is what `runtime.memory_gib` says, and there may be as many as a plan wants.
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
        return (MOST_DEVICES if self.supposed else self.count) if self.cuda else 1

    def share(self, processes: int) -> int | None:
        """Bytes of one of `processes` processes."""
        if self.memory is None:
            return None
        sharers = 1 if self.cuda else min(processes, self.local or processes)
        return self.memory // (sharers * self.jobs)


def device(checked: Config) -> Device:
    """The device that a config runs on. Imports torch."""
    import torch

    cuda, limit = ranks.device(checked.runtime.device).startswith("cuda"), checked.runtime.memory_gib
    given, there = None if limit is None else int(limit * GIB), cuda and torch.cuda.is_available()
    name, memory, count = "this machine", given, 1
    if there:
        name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
        memory = given or torch.cuda.get_device_properties(0).total_memory
    elif given is not None:
        name = "runtime.memory_gib"
    elif not cuda:
        main = main_memory()
        memory = main.total if main else None
    jobs = int(os.environ.get(PROCESSES, "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) if ranks.launched() > 1 else 0
    return Device(name, memory, count, cuda, jobs, local, given is not None)


def processes(checked: Config, found: Device) -> int:
    """Processes that train a stage together, on all machines where a launcher started them."""
    return together(checked, found.count if found.cuda else 0)
