"""Control groups: the kernel limits the total memory and number of processes of a sandbox, if a group can be created.

Version 1 needs a writable group of each controller. Version 2 needs a group whose children have the memory and pids
controllers; ordinary users only have one if the system delegates it. Without a control group, the memory limit applies
to each process, and the number of processes is limited.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.packs.code.sandbox.outcome import ProgramLimits

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MIB = 1024 * 1024
OWN_MEMORY_MIB = 48
"""Memory in MiB of the launcher and process 1, which belong to the group as well."""
OWN_PROCESSES = 2
"""Number of these processes."""

_numbers = itertools.count()


@dataclass(frozen=True)
class ControlGroup:
    """A control group of one program.

    Attributes:
        folders: directories of the group; version 1 has one for each controller.
        join: files to which the launcher writes in order to join the group.
        events: file that counts kills because of the memory limit.
    """

    folders: tuple[Path, ...]
    join: tuple[Path, ...]
    events: Path

    def killed_for_memory(self) -> bool:
        """Return True if the kernel killed a process because the group reached its memory limit."""
        try:
            lines = self.events.read_text().splitlines()
        except OSError:
            return False
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count) > 0
        return False

    def remove(self) -> None:
        """Remove the group. While its last process is still exiting, the kernel returns EBUSY, so this retries."""
        for directory in self.folders:
            # up to 0.1 s
            for _ in range(50):
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)


def create(limits: ProgramLimits) -> ControlGroup | None:
    """Create a group with these limits; None if that is not possible."""
    memory = (limits.memory_mib + limits.disk_mib + OWN_MEMORY_MIB) * MIB  # the files of the program are in memory too
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


def has_groups(limits: ProgramLimits) -> bool:
    """Return True if a group can be created on this machine."""
    group = create(limits)
    if group:
        group.remove()
    return group is not None


def _own_paths() -> dict[str, str]:
    """Return the path of this process's group for each controller; the key "" is version 2."""
    paths = {}
    # each line has the form `hierarchy:controllers:path`
    for line in OWN.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _create_v1(paths: dict[str, str], name: str, memory: int, processes: int) -> ControlGroup:
    memory_dir = ROOT / "memory" / paths["memory"].lstrip("/") / name
    pids_dir = ROOT / "pids" / paths["pids"].lstrip("/") / name
    join = (memory_dir / "cgroup.procs", pids_dir / "cgroup.procs")
    group = ControlGroup((memory_dir, pids_dir), join, memory_dir / "memory.oom_control")
    limits = [(memory_dir, "memory.limit_in_bytes", memory), (pids_dir, "pids.max", processes)]
    _fill(group, limits)
    return group


def _create_v2(own: str, name: str, memory: int, processes: int) -> ControlGroup | None:
    """Create a group below this process's group or next to it.

    The second is needed because a version 2 group that contains processes cannot give its children controllers.
    """
    here = ROOT / own.lstrip("/")
    for parent in (here, here.parent):
        if not parent.is_relative_to(ROOT):
            continue
        enabled = (parent / "cgroup.subtree_control").read_text().split()
        # moving a process needs write access to the common ancestor of both groups, which is `parent`
        may_move = os.access(parent / "cgroup.procs", os.W_OK)
        if {"memory", "pids"} <= set(enabled) and may_move:
            directory = parent / name
            group = ControlGroup((directory,), (directory / "cgroup.procs",), directory / "memory.events")
            _fill(group, [(directory, "memory.max", memory), (directory, "pids.max", processes)])
            return group
    return None


def _fill(group: ControlGroup, values: list[tuple[Path, str, int]]) -> None:
    """Create the directories and write the limits. On an OSError the group is removed and the error is raised again."""
    try:
        for directory in group.folders:
            directory.mkdir()
        for directory, file, value in values:
            (directory / file).write_text(str(value))
    except OSError:
        group.remove()
        raise
