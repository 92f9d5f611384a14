"""Control groups: the memory and processes of a whole sandbox, counted together by the kernel, where one can be made.

Version 1 needs a writable group of each controller. Version 2 needs a group whose children have the memory and pids
controllers, which a system hands to ordinary users only where it delegates one. Without a group the limits hold for
each process, and for the number of processes.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.packs.code.sandbox.outcome import Limits

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MIB = 1024 * 1024
OWN_MEMORY_MIB = 48
"""Memory of the launcher and of process 1, which are in the group too."""
OWN_PROCESSES = 2

_numbers = itertools.count()


@dataclass(frozen=True)
class Group:
    """A control group of one program; with version 1 a folder for each controller.

    Attributes:
        folders: where it lies.
        join: files to which the launcher writes.
        events: file that counts kills for lack of memory.
    """

    folders: tuple[Path, ...]
    join: tuple[Path, ...]
    events: Path

    def killed_for_memory(self) -> bool:
        """Whether the kernel ended a process because the group had no memory left."""
        try:
            lines = self.events.read_text().splitlines()
        except OSError:
            return False
        counts = dict(line.split() for line in lines if len(line.split()) == 2)
        return int(counts.get("oom_kill", 0)) > 0

    def remove(self) -> None:
        """Remove the group. Its last process may be still on its way out, which the kernel answers with EBUSY."""
        for folder in self.folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)


def create(limits: Limits) -> Group | None:
    """A new group with these limits, or None where none can be made."""
    memory = (limits.memory_mib + limits.disk_mib + OWN_MEMORY_MIB) * MIB  # files in memory count too
    processes = limits.processes + OWN_PROCESSES
    try:
        paths = _own_paths()
        name = f"rlhf_lab-{os.getpid()}-{next(_numbers)}"
        if {"memory", "pids"} <= paths.keys():
            return _create_v1(paths, name, memory, processes)
        if "" in paths:
            return _create_v2(paths[""], name, memory, processes)
    except (OSError, ValueError):
        return None
    return None


def has_groups(limits: Limits) -> bool:
    """Whether a group can be made here."""
    group = create(limits)
    if group:
        group.remove()
    return group is not None


def _own_paths() -> dict[str, str]:
    """Controller → path of this process's group; "" is the one of version 2."""
    paths = {}
    for line in OWN.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _create_v1(paths: dict[str, str], name: str, memory: int, processes: int) -> Group:
    folders = {
        controller: ROOT / controller / paths[controller].lstrip("/") / name for controller in ("memory", "pids")
    }
    values = {"memory": ("memory.limit_in_bytes", memory), "pids": ("pids.max", processes)}
    join = tuple(folder / "cgroup.procs" for folder in folders.values())
    group = Group(tuple(folders.values()), join, folders["memory"] / "memory.oom_control")
    _fill(group, [(folders[controller], file, value) for controller, (file, value) in values.items()])
    return group


def _create_v2(own: str, name: str, memory: int, processes: int) -> Group | None:
    """Below this process's group or beside it: a group that has processes can give its children no controllers."""
    here = ROOT / own.lstrip("/")
    for parent in (here, here.parent):
        if not parent.is_relative_to(ROOT):
            continue
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        if {"memory", "pids"} <= set(enabled) and os.access(parent / "cgroup.procs", os.W_OK):
            folder = parent / name
            group = Group((folder,), (folder / "cgroup.procs",), folder / "memory.events")
            _fill(group, [(folder, "memory.max", memory), (folder, "pids.max", processes)])
            return group
    return None


def _fill(group: Group, values: list[tuple[Path, str, int]]) -> None:
    """Make the folders and write the limits. Raises OSError, and leaves nothing then."""
    try:
        for folder in group.folders:
            folder.mkdir()
        for folder, file, value in values:
            (folder / file).write_text(str(value))
    except OSError:
        group.remove()
        raise
