"""Limits and outcome of a program in the sandbox."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlhf_lab.core.errors import LabError

Level = Literal["namespaces+seccomp", "container", "namespaces", "rlimits"]
Status = Literal["ok", "error", "timeout", "memory", "disk", "output", "processes", "killed"]


class SandboxError(LabError, OSError):
    """A program could not be started in a sandbox. The cause is the machine or rlhf_lab, never the program."""


class SandboxUnavailable(SandboxError):
    """The requested level of isolation does not work on this machine. The message has the reason and alternatives."""


@dataclass(frozen=True)
class ProgramLimits:
    """Resource limits of one program.

    Attributes:
        wall_s: wall time in seconds, after which the program is killed.
        cpu_s: processor time of each process in seconds, rounded up to an integer.
        memory_mib: address space of each process in MiB. If a control group can be created, it is also the limit of the
            total memory of all processes.
        disk_mib: total size in MiB of all files that it writes, in its directory, in /tmp and in /dev/shm.
        processes: maximum number of simultaneous processes and threads.
        output_kib: maximum size in KiB of standard output, and of standard error; a program that writes more is killed.
    """

    wall_s: float
    cpu_s: float
    memory_mib: int
    disk_mib: int
    processes: int
    output_kib: int

    @property
    def whole_cpu_s(self) -> int:
        """`cpu_s` rounded up to an integer, because the kernel only accepts integers; 1 or more."""
        return max(1, math.ceil(self.cpu_s))


@dataclass(frozen=True)
class ProgramOutcome:
    """Outcome of one program.

    Attributes:
        status: `ok` for exit status 0; `error` for another exit status; `killed` by a signal. `timeout`, `memory`,
            `disk`, `output` and `processes` name the limit that it exceeded. A program can fake `memory`, `disk` and
            `processes`, because they are detected in its last error message. It cannot fake `ok`.
        exit: exit status, or minus the number of the signal that killed it; None if the sandbox stopped it.
        stdout, stderr: output of the program; invalid UTF-8 is replaced.
        wall_s: time in seconds from the start of the launcher to the exit of all processes.
        cpu_s: processor time in seconds of the program and its descendants; 0 if the sandbox stopped it.
        files: contents of the regular files in its directory after its exit, by path, if requested. `main.py` is
            excluded. None if the directory could not be read, for example because the sandbox stopped the program.
        files_cut: True if files are missing in `files` because of their size or path, or because they are unreadable.
        lost: reason why the exit of the program is unknown: its launcher exited without a report; else empty. The
            status is then `killed`, or the limit for which the sandbox stopped it.
    """

    status: Status
    exit: int | None
    stdout: str
    stderr: str
    wall_s: float
    cpu_s: float
    level: Level
    files: Mapping[str, bytes] | None = None
    files_cut: bool = False
    lost: str = ""

    def next_files(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files for the next run of the same task.

        These are the files after this run, so that a deleted file stays deleted. If the directory could not be read,
        they are `files`, the files before this run.
        """
        return dict(files if self.files is None else self.files)
