"""Cores and main memory that this process may use; of a container if it has less than its machine (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROCESSES = "RLHF_LAB_PROCESSES"
"""Environment variable: how many jobs of a sweep share this machine at a time."""

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use of this container, in control groups of version 2 and 1."""


@dataclass(frozen=True)
class Memory:
    """Bytes that processes on this machine may take together, and those that can still be taken."""

    total: int
    free: int


def main_memory() -> Memory | None:
    """Main memory of the machine or of its container; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        total = int(lines["MemTotal"].split()[0]) * 1024  # such as "32612340 kB"
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
    """Cores this process may use: fewer than the machine has under Slurm or taskset."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
