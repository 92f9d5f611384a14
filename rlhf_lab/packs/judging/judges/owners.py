"""Identity of the process that sent an attempt, and check whether that process is still alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Return host, process id and start time of this process. The system reuses process ids, so one is not enough."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Return True if a process has certainly ended. This is never certain for a process of another host."""
    host, pid, start = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return True
    except PermissionError:  # the process exists and belongs to another user
        return False
    return _start(int(pid)) != start


def _start(pid: int) -> str:
    """Return boot id and start time of a process in ticks since boot; "" if the system does not provide them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # field 2 is a name in brackets that may contain spaces, so split after it; the start time is field 22
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] == "Z":  # a zombie: killed, but not yet reaped by its parent
        return "ended"
    return f"{boot}:{fields[19]}"
