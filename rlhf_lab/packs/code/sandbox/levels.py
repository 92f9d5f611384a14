"""The ladder of isolation: what each level is, what of it works on this machine, and how a program is started on it.

| level                | a program has                                                                     |
|----------------------|-----------------------------------------------------------------------------------|
| `namespaces+seccomp` | its own root, processes, network, ipc, host name, uid; a filter of system calls   |
| `container`          | what docker or podman give a container without network, capabilities and writable root |
| `namespaces`         | the first without the filter                                                      |
| `rlimits`            | limits per process, a folder and an empty environment; all that the user can read |

`auto` takes the first of these that works, and never `rlimits`: docs/design/022-sandbox.md.
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
from rlhf_lab.packs.code.sandbox.groups import Group
from rlhf_lab.packs.code.sandbox.outcome import Level, Limits
from rlhf_lab.packs.code.sandbox.process import Program

LEVELS: tuple[Level, ...] = get_args(Level)
STAYS_OPEN: Mapping[Level, str] = {
    "namespaces+seccomp": (
        "faults of the kernel in calls that are allowed; load, uptime and free memory of the machine; read locks of "
        "records on the interpreter's files, which other sandboxes can see"
    ),
    "container": "what the engine's own filter allows; the probes were not run on it",
    "namespaces": (
        "all that namespaces+seccomp does not stop; sockets of a virtual machine to its host; without a control group "
        "memory that is shared or pinned but not mapped; watches and locks on the interpreter's files; kernel "
        "interfaces with many past faults; an ordinary user's program can end its own sandbox, and fails then"
    ),
    "rlimits": "all that this user can read, reach and end, the process that reports on a program among it",
}
"""What each level does not stop, for the command `sandbox`."""
NO_GROUP = (
    "no control group can be made here (it takes root or a delegated group): each process of a program is bounded "
    "exactly, all together are added up every 50 ms, and what the kernel keeps for them is not counted, such as up to "
    "14 MiB per process in its sockets"
)
WITH_GROUP = "a control group counts all processes of a program, and what the kernel keeps for them"
AUTOMATIC: tuple[Level, ...] = ("namespaces+seccomp", "container", "namespaces")
"""In the order in which `auto` tries them."""

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
"""The launcher's program. Importing the packages themselves would cost more than the launcher does."""

MAIN = "main.py"
"""The file of the program in its folder."""
ENVIRONMENT = {"PATH": "/nowhere", "HOME": "/work", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""All that a program finds in its environment. The fixed hash seed makes the order of sets the same every time."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LINKER_CACHE = "/etc/ld.so.cache"
USER_IN_NAMESPACE = 1000
PRIVATE_UIDS = 0x40000000
"""Root gives each program a uid that nobody has: this plus the launcher's process number, which is below 2^22. The
kernel counts RLIMIT_NPROC by uid, so that two programs with one uid would count together."""
STATUS_BYTES = 1 << 20
"""Of the launcher's report besides the content of files."""


@dataclass(frozen=True)
class Layout:
    """Where the interpreter and its libraries lie, which a program sees at the same places.

    Attributes:
        python: the interpreter.
        read_only: files and folders that are shown.
        hidden: folders of these that are shown empty: installed packages.
        links: (path, target) of links beside them.
    """

    python: str
    read_only: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@cache
def layout() -> Layout:
    """The layout of this process's interpreter; of a virtual environment the one that it was made from."""
    executable = getattr(sys, "_base_executable", "") or sys.executable
    interpreter = os.path.realpath(executable)
    folders = [path for path in LIBRARIES if os.path.isdir(path) and not os.path.islink(path)]
    own_library = os.path.realpath(os.path.join(sys.base_prefix, "lib"))
    if own_library not in folders:
        folders.append(own_library)
    files = [path for path in (interpreter, LINKER_CACHE) if os.path.isfile(path)]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = [f"{python}/{kind}-packages" for python in (version, "python3") for kind in ("site", "dist")]
    packages = [f"{folder}/{name}" for folder in folders for name in names]
    hidden = [path for path in packages if os.path.isdir(path) and not os.path.islink(path)]
    links = [(path, os.readlink(path)) for path in LIBRARIES if os.path.islink(path)]
    return Layout(interpreter, (*folders, *files), tuple(hidden), tuple(links))


@dataclass(frozen=True)
class Task:
    """One program to start.

    Attributes:
        files: path → content of the files in its folder; `MAIN` is run.
        stdin: what it reads; more may follow where `stays_open`.
        keep: whether files come back.
        on_output: what arrives on its stdout, see `Program`.
        on_start: called with the started program, before anything is read from it.
        on_end: called when the program has ended.
        output_kib: in place of the limit's, where not 0.
        longer_s: time in addition to the limit's.
    """

    files: Mapping[str, bytes]
    stdin: bytes = b""
    stays_open: bool = False
    keep: bool = False
    on_output: Callable[[bytes], None] | None = None
    on_start: Callable[[Program], None] | None = None
    on_end: Callable[[], None] | None = None
    output_kib: int = 0
    longer_s: float = 0.0


def start(task: Task, limits: Limits, level: Level, group: Group | None) -> tuple[Program, str]:
    """Start a program on one of the levels but `container`.

    Returns:
        The program, and a temporary folder to remove after its end; "" where there is none.
    """
    folder = tempfile.mkdtemp(prefix="sandbox-", dir=scratch_dir()) if level == "rlimits" else ""
    frame = marshal.dumps(_specification(task, limits, level, group, folder))
    receive_spec, send_spec = os.pipe()
    receive_status, send_status = os.pipe()
    # -I and -S: nothing of the user's environment, and no site-packages, whose .pth files can cost more than all else
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
    program = Program(
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
    return program, folder


def _send_all(descriptor: int, data: bytes) -> None:
    """The launcher reads this before anything else, so that writing blocks for its start at most."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        return  # it did not start; its stderr says why


def _specification(task: Task, limits: Limits, level: Level, group: Group | None, folder: str) -> dict[str, Any]:
    """What `jail.launch.run` reads."""
    shown = layout()
    has_namespaces = level != "rlimits"
    return {
        "argv": [shown.python, "-s", "-B", "-X", "utf8", MAIN],
        "env": {**ENVIRONMENT, **({} if has_namespaces else {"HOME": folder, "TMPDIR": folder})},
        "folder": "/work" if has_namespaces else folder,
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
        "cpu_s": limits.cpu_s,
        "wall_s": limits.wall_s + task.longer_s,
        "processes": limits.processes,
        "keep": task.keep,
        "groups": [str(path) for path in group.join] if group else [],
    }


@cache
def _private_uids() -> tuple[int, int]:
    """First private uid, and how many there are: fewer in a container that has a part of the numbers only."""
    lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if any(int(inside) == 0 and int(count) > PRIVATE_UIDS + 2**22 for inside, _, count in lines):
        return PRIVATE_UIDS, 2**22
    return 60000, 5000


def problem_of(failure: str) -> str:
    """What a failed start means, in words of what can be done."""
    if failure.startswith("unshare") and "Operation not permitted" in failure:
        return (
            f"{failure}: user namespaces are not allowed here (sysctl user.max_user_namespaces, AppArmor, or the "
            "filter of a container around it)"
        )
    return failure
