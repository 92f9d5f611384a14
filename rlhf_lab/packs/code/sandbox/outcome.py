"""What a program may use, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf_lab.core.errors import LabError

Level = Literal["namespaces+seccomp", "container", "namespaces", "rlimits"]
Status = Literal["ok", "error", "timeout", "memory", "disk", "output", "processes", "killed"]


class SandboxError(LabError, OSError):
    """A program could not be started in a sandbox: a fault of the machine or of the lab, never of the program."""


class SandboxUnavailable(SandboxError):
    """The level of isolation that is asked for does not work here. Says why, and what to choose instead."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Args:
        wall_s: seconds from its start; then it is killed.
        cpu_s: seconds of processor time of each of its processes, rounded up to whole ones.
        memory_mib: address space of each of its processes. Where a control group can be made, also the memory of all of
            them together.
        disk_mib: of all files that it writes, in its folder, in /tmp and in /dev/shm together.
        processes: processes and threads at a time.
        output_kib: of standard output and standard error, each; a program that writes more is killed.
    """

    wall_s: float
    cpu_s: float
    memory_mib: int
    disk_mib: int
    processes: int
    output_kib: int


@dataclass(frozen=True)
class Outcome:
    """What came of one program.

    Attributes:
        status: `ok` ended with exit status 0; `error` with another; `killed` by a signal. `timeout`, `memory`, `disk`,
            `output` and `processes` name the limit that it ran into. Of `memory`, `disk` and `processes` a program
            may decide itself that it ran into them (they are read from its last error); never of `ok`.
        exit: exit status; minus the number of the signal that ended it; None where it did not end by itself.
        stdout, stderr: what it wrote, bytes that are no UTF-8 replaced.
        wall_s: from the start of the launcher to the end of all processes.
        cpu_s: processor time of the program and what it started; 0 where it was ended from outside.
        level: the isolation it ran under.
        files: regular files in its folder at the end, where they were asked for: path → content.
        files_cut: whether files were left out of `files` because of their size, or could not be read.
        lost: why nothing is known of the program's end: what builds its sandbox ended without a report. Empty
            otherwise. Its status is `killed`, or the limit for which it was ended from here.
    """

    status: Status
    exit: int | None
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    level: Level
    files: Mapping[str, bytes] = field(default_factory=dict)
    files_cut: bool = False
    lost: str = ""
