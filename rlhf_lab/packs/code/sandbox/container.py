"""The level `container`: a program under docker or podman. Thin: one command, and no files back.

The program goes in by standard input, in front of its own, so that no folder of the machine is mounted. What holds it
is the container's: no network, no capabilities, no new privileges, a read-only root, an unknown uid, memory and
processes counted by its control group, and the filter of system calls that docker and podman have by default.
"""

from __future__ import annotations

import itertools
import marshal
import os
import shutil
import signal
import subprocess
from subprocess import PIPE, Popen

from rlhf_lab.packs.code.sandbox.levels import ENVIRONMENT, MAIN, Task
from rlhf_lab.packs.code.sandbox.outcome import Limits, SandboxError
from rlhf_lab.packs.code.sandbox.process import Program

ENGINES = ("docker", "podman")
STARTED = "rlhf_lab: the program starts\n"
"""What stderr says in front of the program's own: without it the exit status and what was said are the engine's. A
program can exit with any number and say anything, but it cannot take this back."""
READ = (
    f"STARTED = {STARTED!r}"
    + """
import marshal, os, sys
def read(length):
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 20))
        if not part:
            sys.exit("the program did not arrive")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
for name, content in marshal.loads(read(int.from_bytes(read(8), "little"))).items():
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "wb") as file:
        file.write(content)
os.write(2, STARTED.encode())
os.execv(sys.executable, [sys.executable, "-s", "-B", "-X", "utf8", sys.argv[1]])
"""
)
"""Runs in the container: writes the files that come first on stdin, and becomes the program, which reads the rest."""
START_S = 20.0
"""Time to start a container, besides the program's own."""

SIGNALLED = 128
"""Engines report the signal n that ended a program as the exit status SIGNALLED + n."""

_numbers = itertools.count()


def engine() -> str | None:
    """The path of docker or podman, whichever is installed."""
    return next((path for path in map(shutil.which, ENGINES) if path), None)


def command(path: str, name: str, image: str, limits: Limits) -> list[str]:
    """The command line that runs a program in a container."""
    disk = f"rw,nosuid,nodev,mode=1777,size={limits.disk_mib}m"
    environment = [word for key, value in ENVIRONMENT.items() if key != "PATH" for word in ("--env", f"{key}={value}")]
    return [
        path, "run", "--rm", "--interactive", "--name", name, "--init", "--network", "none", "--read-only",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534", "--ipc", "private",
        "--memory", f"{limits.memory_mib}m", "--memory-swap", f"{limits.memory_mib}m",
        "--pids-limit", str(limits.processes + 1), "--ulimit", f"cpu={max(1, round(limits.cpu_s))}",
        "--tmpfs", f"/work:{disk}", "--tmpfs", f"/tmp:{disk}", "--shm-size", f"{limits.disk_mib}m",
        "--workdir", "/work", *environment, image, "python3", "-I", "-S", "-c", READ, MAIN,
    ]  # fmt: skip


def exit_code(status: int) -> int:
    """The exit status of an engine's command as that of the program: minus the signal that ended it, if one did."""
    return SIGNALLED - status if SIGNALLED < status <= SIGNALLED + signal.SIGRTMAX else status


def start(task: Task, limits: Limits, image: str) -> Program:
    """Start a program. Raises SandboxError where files are to come back, or no engine is there."""
    path = engine()
    if path is None:
        raise SandboxError(f"no container engine: install one of {', '.join(ENGINES)}")
    if task.keep:
        raise SandboxError("level=container gives no files back; use sandbox.level=namespaces+seccomp")
    name = f"rlhf_lab-sandbox-{os.getpid()}-{next(_numbers)}"
    frame = marshal.dumps({key: bytes(content) for key, content in task.files.items()})
    process = Popen(command(path, name, image, limits), stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def stop() -> None:
        subprocess.run([path, "kill", name], capture_output=True)  # the client's end is not the container's
        process.kill()

    return Program(
        process,
        stop,
        stdin=len(frame).to_bytes(8, "little") + frame + task.stdin,
        wall_s=limits.wall_s + task.longer_s + START_S,
        output_bytes=(task.output_kib or limits.output_kib) * 1024,
        stays_open=task.stays_open,
        on_output=task.on_output,
        on_end=task.on_end,
    )
