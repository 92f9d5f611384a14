"""Levels of isolation, and the start of a program at each level except `container`.

| level                | isolation of a program                                                              |
|----------------------|-------------------------------------------------------------------------------------|
| `namespaces+seccomp` | own root, processes, network, ipc, host name and uid; a filter of system calls      |
| `container`          | docker or podman without network, without capabilities, with a read-only root       |
| `namespaces`         | `namespaces+seccomp` without the filter                                             |
| `rlimits`            | limits per process, own directory, empty environment; it can read the user's files  |

`auto` selects the first of these that works, but never `rlimits`, and never `container` for a program whose files are
returned; see docs/design/022-sandbox.md.
"""

from __future__ import annotations

import marshal
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, get_args

import rlhf_lab
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.packs.code.sandbox.groups import ControlGroup
from rlhf_lab.packs.code.sandbox.jail.mounts import DISK_FOLDERS
from rlhf_lab.packs.code.sandbox.outcome import Level, ProgramLimits, SandboxError
from rlhf_lab.packs.code.sandbox.process import SandboxedProcess

LEVELS: tuple[Level, ...] = get_args(Level)
STAYS_OPEN: Mapping[Level, str] = {
    "namespaces+seccomp": (
        "kernel bugs in allowed calls; reading load, uptime and free memory of the machine; read locks of records on "
        "the interpreter's files, which other sandboxes can see"
    ),
    "container": "everything that the filter of the engine allows; the probes were not run at this level",
    "namespaces": (
        "everything that namespaces+seccomp does not stop; sockets of a virtual machine to its host; without a control "
        "group, memory that is shared or pinned but not mapped; watches and locks on the interpreter's files; kernel "
        "interfaces with many past bugs; a program of an ordinary user can kill its own sandbox, and then fails"
    ),
    "rlimits": "everything that this user can read, reach and kill, including the process that reports on the program",
}
"""Attacks that each level does not stop, for the command `sandbox`."""
NO_GROUP = (
    "no control group can be created on this machine (it needs root or a delegated group): the limit of each process "
    "is exact, the total of all processes is only checked every 50 ms, and kernel memory for them is not counted, such "
    "as up to 14 MiB per process in its sockets"
)
WITH_GROUP = "a control group counts all processes of a program, and the kernel memory that they use"
AUTOMATIC: tuple[Level, ...] = ("namespaces+seccomp", "container", "namespaces")
"""Levels that `auto` tries, in this order."""

PACKAGE = Path(rlhf_lab.__file__).resolve().parent
BOOT = """
import sys
path = sys.argv[1]
for name in ("rlhf_lab", "rlhf_lab.packs", "rlhf_lab.packs.code", "rlhf_lab.packs.code.sandbox"):
    package = type(sys)(name)
    package.__path__ = [path + name[8:].replace(".", "/")]
    sys.modules[name] = package
from rlhf_lab.packs.code.sandbox.jail.launch import run
run(int(sys.argv[2]), int(sys.argv[3]))
"""
"""Program of the launcher. It creates empty packages, because importing the real ones would take longer than a run."""

MAIN = "main.py"
"""Name of the program's file in its directory."""
ENVIRONMENT = {"PATH": "/nowhere", "HOME": "/work", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""Environment of a program. The fixed hash seed makes the order of sets reproducible."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LINKER_CACHE = "/etc/ld.so.cache"  # without it the dynamic linker searches fewer directories
USER_IN_NAMESPACE = 1000  # any uid but 0 works; the user namespace maps it to the caller's own
PRIVATE_UIDS = 0x40000000
"""First private uid. Root runs each program with an unused uid: this plus the launcher's process id, which is below
2^22. The kernel counts RLIMIT_NPROC per uid, so programs with the same uid would share the limit."""
STATUS_BYTES = 1 << 20
"""Maximum size of the launcher's report in bytes, without the contents of files."""


@dataclass(frozen=True)
class InterpreterPaths:
    """Paths of the interpreter and its libraries. A program sees them at the same paths.

    Attributes:
        read_only: visible files and directories.
        hidden: sub-directories that appear empty: installed packages.
        links: path and target of symbolic links.
    """

    python: str
    read_only: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@cache
def layout() -> InterpreterPaths:
    """Return the paths of this interpreter; in a virtual environment, those of its base interpreter."""
    # a virtual environment only contains links to its base interpreter
    executable = getattr(sys, "_base_executable", "") or sys.executable
    interpreter = os.path.realpath(executable)
    folders = [path for path in LIBRARIES if os.path.isdir(path) and not os.path.islink(path)]
    own_library = os.path.realpath(os.path.join(sys.base_prefix, "lib"))
    if own_library not in folders:
        folders.append(own_library)
    files = [path for path in (interpreter, LINKER_CACHE) if os.path.isfile(path)]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # installed packages are hidden: programs use the standard library only, whatever this machine has
    names = [f"{python}/{kind}-packages" for python in (version, "python3") for kind in ("site", "dist")]
    packages = [f"{directory}/{name}" for directory in folders for name in names]
    hidden = [path for path in packages if os.path.isdir(path) and not os.path.islink(path)]
    links = [(path, os.readlink(path)) for path in LIBRARIES if os.path.islink(path)]
    return InterpreterPaths(interpreter, (*folders, *files), tuple(hidden), tuple(links))


@dataclass(frozen=True)
class SandboxTask:
    """One program to start.

    Attributes:
        files: contents of the files in its directory by path; `MAIN` is run.
        stays_open: True if more input may follow.
        keep: True to return files.
        on_output: function that receives its stdout; see `SandboxedProcess`.
        on_start: function called with the started program, before its output is read.
        on_end: function called after the program has exited.
        output_kib: output limit in KiB that replaces the general one; 0 keeps the general one.
        longer_s: additional wall time in seconds.
    """

    files: Mapping[str, bytes]
    stdin: bytes = b""
    stays_open: bool = False
    keep: bool = False
    on_output: Callable[[bytes], None] | None = None
    on_start: Callable[[SandboxedProcess], None] | None = None
    on_end: Callable[[], None] | None = None
    output_kib: int = 0
    longer_s: float = 0.0


def start(
    task: SandboxTask, limits: ProgramLimits, level: Level, group: ControlGroup | None
) -> tuple[SandboxedProcess, str]:
    """Start a program at a level other than `container`.

    Returns:
        The program, and a temporary directory to remove after its exit; empty if there is none.
    """
    directory = tempfile.mkdtemp(prefix="sandbox-", dir=scratch_dir()) if level == "rlimits" else ""
    frame = marshal.dumps(_specification(task, limits, level, group, directory))
    receive_spec, send_spec = os.pipe()
    receive_status, send_status = os.pipe()
    # -I ignores the user's environment; -S skips site-packages, whose .pth files can take longer than everything else
    command = [layout().python, "-I", "-S", "-c", BOOT, str(PACKAGE), str(receive_spec), str(send_status)]
    try:
        process = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={}, cwd="/", pass_fds=(receive_spec, send_status)
        )
    except BaseException:
        os.close(send_spec)
        os.close(receive_status)
        raise
    finally:
        os.close(receive_spec)
        os.close(send_status)
    program = SandboxedProcess(
        process,
        lambda: os.close(send_spec),
        stdin=task.stdin,
        wall_s=limits.wall_s + task.longer_s,
        output_bytes=(task.output_kib or limits.output_kib) * 1024,
        status_pipe=receive_status,
        status_bytes=STATUS_BYTES + (limits.disk_mib << 20 if task.keep else 0),
        stays_open=task.stays_open,
        on_output=task.on_output,
        on_end=task.on_end,
    )
    _send_all(send_spec, len(frame).to_bytes(8, "little") + frame)
    return program, directory


def _send_all(descriptor: int, data: bytes) -> None:
    """Send the specification to the launcher. Writing blocks until the launcher has started and reads it."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        return  # the launcher did not start; its stderr contains the reason


def _specification(
    task: SandboxTask, limits: ProgramLimits, level: Level, group: ControlGroup | None, directory: str
) -> dict[str, Any]:
    """Return the specification for `jail.launch.run`."""
    shown = layout()
    has_namespaces = level != "rlimits"
    if has_namespaces:
        _require_visible(shown)
    return {
        "argv": [shown.python, "-s", "-B", "-X", "utf8", MAIN],
        "env": {**ENVIRONMENT, **({} if has_namespaces else {"HOME": directory, "TMPDIR": directory})},
        "folder": "/work" if has_namespaces else directory,
        "files": {name: bytes(content) for name, content in task.files.items()},
        "namespaces": has_namespaces,
        "user_namespace": os.geteuid() != 0,
        "seccomp": level == "namespaces+seccomp",
        "uids": _private_uids() if os.geteuid() == 0 else (USER_IN_NAMESPACE, 1),
        "read_only": list(shown.read_only),
        "hidden": list(shown.hidden),
        "links": list(shown.links),
        "memory_mib": limits.memory_mib,
        "disk_mib": limits.disk_mib,
        "cpu_s": limits.whole_cpu_s,
        "wall_s": limits.wall_s + task.longer_s,
        "processes": limits.processes,
        "keep": task.keep,
        "groups": [str(path) for path in group.join] if group else [],
    }


def _require_visible(shown: InterpreterPaths) -> None:
    """Raise SandboxError if the program's disk would hide the interpreter."""
    for path in shown.read_only:
        hiding = [directory for directory in DISK_FOLDERS if Path(path).is_relative_to(directory)]
        if hiding:
            raise SandboxError(
                f"the Python interpreter needs {path}, but the empty disk of the sandbox hides {hiding[0]}; run "
                f"rlhf_lab with an interpreter outside {', '.join(DISK_FOLDERS)} (for a virtual environment, this "
                "means its base interpreter)"
            )


@cache
def _private_uids() -> tuple[int, int]:
    """Return the first private uid and the number of private uids, which is smaller in a container that maps few
    uids.
    """
    wanted = 2**22  # as many as the kernel has process ids, so that programs at the same time never share one
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside == 0 and count > PRIVATE_UIDS + wanted:
            return PRIVATE_UIDS, wanted
    return 60000, 5000  # below 65536, the number of uids that a container usually maps


def problem_of(failure: str) -> str:
    """Return the message of a failed start, with an explanation if the cause is known."""
    if failure.startswith("unshare") and "Operation not permitted" in failure:
        return (
            f"{failure}: user namespaces are not allowed on this machine (sysctl user.max_user_namespaces, AppArmor, "
            "or the filter of the surrounding container)"
        )
    return failure
