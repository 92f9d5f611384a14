"""Peak memory of a stage: the CUDA allocator's on a GPU, the process's resident set on Linux, else unknown."""

from __future__ import annotations

from pathlib import Path

import torch

PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Reset the peak of the process and of the GPU."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        (PROCESS / "clear_refs").write_text("5")  # resets VmHWM
    except OSError:  # not Linux, or a container that forbids it
        return


def floor_gib() -> float:
    """Return the GiB that the process uses before it has built anything: 0 on a GPU, else its resident set."""
    if torch.cuda.is_available():
        return 0.0
    return _status_gib("VmRSS") or 0.0


def peak_gib() -> float | None:
    """Return the maximum memory since `reset_peak`, GiB; None if the system does not report it."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return round(torch.cuda.max_memory_allocated() / 2**30, 4)
    return _status_gib("VmHWM")


def _status_gib(name: str) -> float | None:
    try:
        status = (PROCESS / "status").read_text()
    except OSError:
        return None
    for line in status.splitlines():  # e.g. "VmRSS:	  123456 kB"
        if line.startswith(f"{name}:"):
            kib = int(line.split()[1])
            return round(kib / 2**20, 4)
    return None
