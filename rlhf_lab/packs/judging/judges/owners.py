"""Which process sent an attempt, and whether it is still there to hear the answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Host, process id and start of this process: an id by itself is given to another process some day."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Whether a process has certainly ended. One of another host is never certain."""
    host, pid, start = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is there, and someone else's
        return False
    return _start(int(pid)) != start


def _start(pid: int) -> str:
    """When a process started, in the kernel's count since boot, with the boot; "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # the second field is a name in brackets that may hold spaces; the start is the 22nd field
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] == "Z":  # killed, and not yet buried by its parent
        return "ended"
    return f"{boot}:{fields[19]}"
