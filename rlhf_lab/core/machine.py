"""Cores and main memory that this process may use. A container's limits count if they are lower (Linux)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

GIB = 2**30
PROCESSES = "RLHF_LAB_PROCESSES"
"""Environment variable: number of sweep jobs that run on this machine at the same time."""
GPU_JOBS = "RLHF_LAB_GPU_JOBS"
"""Environment variable: number of sweep jobs that share this job's GPU, once a parallel job has got its GPU."""
GPUS = Path("/proc/driver/nvidia/gpus")
"""Directory with one entry per GPU of NVIDIA's driver."""
MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""(memory limit, memory use) of this container, for control groups version 2 and version 1."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time per period, and the period; control groups version 2, as set by `docker run --cpus`."""


@dataclass(frozen=True)
class Memory:
    """Bytes that all processes on this machine may use together, and bytes that are still available."""

    total: int
    free: int


def main_memory() -> Memory | None:
    """Return the main memory of the machine or of its container, or None if the system does not report it."""
    try:
        rows = MEMINFO.read_text().splitlines()
        lines = dict(row.split(":", 1) for row in rows)
        total = int(lines["MemTotal"].split()[0]) * 1024  # in kB, e.g. "32612340 kB"
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    for limit_file, usage_file in CGROUPS:
        try:
            limit = int(limit_file.read_text())
            usage = int(usage_file.read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        total = min(total, limit)
        free = min(free, limit - usage)
    return Memory(total, max(free, 0))


def usable_cores() -> int:
    """Return the number of cores this process may use; Slurm, taskset or a container may allow fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # Linux only
    try:
        quota, period = map(int, CPU_QUOTA.read_text().split())
    except (OSError, ValueError):  # no such group, or "max"
        return cores
    return min(cores, math.ceil(quota / period))


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA will see, as entries of CUDA_VISIBLE_DEVICES; does not initialise CUDA.

    As in CUDA, the list ends before an empty entry or -1. Without the variable it has every GPU of NVIDIA's driver.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index, _ in enumerate(GPUS.iterdir())] if GPUS.is_dir() else []
    entries = [entry.strip() for entry in chosen.split(",")]
    return list(takewhile(lambda entry: entry not in ("", "-1"), entries))
