"""How much memory a process may use: the GPU's, the machine's, or what `runtime.memory_gib` says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlhf_lab import ranks, registry
from rlhf_lab.analysis.memory_model import GIB
from rlhf_lab.config import Config

CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Device:
    """Where the processes of a stage compute.

    Attributes:
        name: for people.
        memory: bytes of the device; None where the system does not say.
        count: devices of this kind on the machine; processes on a CPU share its memory.
        cuda: whether it is a GPU.
    """

    name: str
    memory: int | None
    count: int = 1
    cuda: bool = False

    def share(self, processes: int) -> int | None:
        """Bytes of one of `processes` processes."""
        return self.memory if self.cuda or self.memory is None else self.memory // processes


def device(checked: Config) -> Device:
    """The device that a config runs on. Imports torch."""
    import torch

    cuda, limit = ranks.device(checked.runtime.device).startswith("cuda"), checked.runtime.memory_gib
    given = None if limit is None else int(limit * GIB)
    if cuda and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        return Device(torch.cuda.get_device_name(), given or total, torch.cuda.device_count(), cuda=True)
    return Device("this machine" if given is None else "runtime.memory_gib", given or machine_memory(), cuda=cuda)


def machine_memory() -> int | None:
    """Bytes of main memory, or of the control group where that is less (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    total = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)
    limit = CGROUP.read_text().strip() if CGROUP.is_file() else ""
    return min(total, int(limit)) if total and limit.isdigit() else total


def processes(checked: Config, found: Device) -> int:
    """Processes that train a stage together, on all machines where a launcher started them."""
    if registry.kind_of("sharding", checked.sharding) == "none" or not checked.algorithm.shares_work:
        return 1
    started = ranks.launched()
    return started if started > 1 else checked.sharding.processes or (found.count if found.cuda else 1)
