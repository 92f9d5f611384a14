"""What the machine has for this process: cores, and main memory, a container's where that is less (Linux)."""

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
    """None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    for limit, used in CGROUPS:
        try:
            allowed, taken = int(limit.read_text()), int(used.read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        total, free = min(total, allowed), min(free, allowed - taken)
    return Memory(total, max(free, 0))


def usable_cores() -> int:
    """Cores this process may use: fewer than the machine has under Slurm or taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
