"""Level `container`: a program in docker or podman. It is a single command and returns no files.

The files of the program are sent on standard input, before the program's own input, so that no directory of the machine
is mounted. The container isolates the program: no network, no capabilities, no new privileges, a read-only root, an
unknown uid, a control group for memory and processes, and the default filter of system calls of docker and podman.
"""

from __future__ import annotations

import itertools
import marshal
import os
import shutil
import signal
import subprocess
from subprocess import PIPE, Popen

from rlhf_lab.packs.code.sandbox.jail.launch import PENDING_SIGNALS
from rlhf_lab.packs.code.sandbox.levels import ENVIRONMENT, MAIN, SandboxTask
from rlhf_lab.packs.code.sandbox.outcome import ProgramLimits, SandboxError
from rlhf_lab.packs.code.sandbox.process import SandboxedProcess

ENGINES = ("docker", "podman")
STARTED = "rlhf_lab: the program starts\n"
"""Marker on stderr before the output of the program. Without it, exit status and output come from the engine. A program
can exit with any status and write anything, but it cannot remove the marker."""
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
"""Script that runs in the container: reads the files from stdin, writes them, and executes the program, which reads the
rest."""
START_S = 20.0
"""Additional wall time to start a container in seconds."""

SIGNALLED = 128
"""Offset of signals in exit statuses: engines report a program killed by signal n with status SIGNALLED + n."""

_numbers = itertools.count()


def engine() -> str | None:
    """Return the path of docker or podman, whichever is installed; None if neither is."""
    return next((path for path in map(shutil.which, ENGINES) if path), None)


def command(path: str, name: str, image: str, limits: ProgramLimits) -> list[str]:
    """Return the command line that runs a program in a container."""
    # memory file systems limit the size of all files that a program writes
    disk = f"rw,nosuid,nodev,mode=1777,size={limits.disk_mib}m"
    environment = []
    for key, value in ENVIRONMENT.items():
        if key != "PATH":  # the image knows where its interpreter is
            environment += ["--env", f"{key}={value}"]
    return [
        path, "run", "--rm", "--interactive", "--name", name, "--init", "--network", "none", "--read-only",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534", "--ipc", "private",
        "--memory", f"{limits.memory_mib}m", "--memory-swap", f"{limits.memory_mib}m",
        "--pids-limit", str(limits.processes + 1),
        "--ulimit", f"cpu={limits.whole_cpu_s}:{limits.whole_cpu_s + 1}",
        "--ulimit", f"sigpending={PENDING_SIGNALS}",
        "--tmpfs", f"/work:{disk}", "--tmpfs", f"/tmp:{disk}", "--shm-size", f"{limits.disk_mib}m",
        "--workdir", "/work", *environment, image, "python3", "-I", "-S", "-c", READ, MAIN,
    ]  # fmt: skip


def exit_code(status: int) -> int:
    """Convert the exit status of an engine to that of the program; it is −n if signal n killed the program."""
    return SIGNALLED - status if SIGNALLED < status <= SIGNALLED + signal.SIGRTMAX else status


def start(task: SandboxTask, limits: ProgramLimits, image: str) -> SandboxedProcess:
    """Start a program, whose files are not returned. Raises SandboxError if there is no engine."""
    path = engine()
    if path is None:
        raise SandboxError(f"no container engine is installed; install one of {', '.join(ENGINES)}")
    name = f"rlhf_lab-sandbox-{os.getpid()}-{next(_numbers)}"
    # marshal, because the script in the container must start fast and the data are trusted
    frame = marshal.dumps({key: bytes(content) for key, content in task.files.items()})
    process = Popen(command(path, name, image, limits), stdin=PIPE, stdout=PIPE, stderr=PIPE)

    def stop() -> None:
        # killing only the client leaves the container running
        subprocess.run([path, "kill", name], capture_output=True)
        process.kill()

    return SandboxedProcess(
        process,
        stop,
        stdin=len(frame).to_bytes(8, "little") + frame + task.stdin,
        wall_s=limits.wall_s + task.longer_s + START_S,
        output_bytes=(task.output_kib or limits.output_kib) * 1024,
        stays_open=task.stays_open,
        on_output=task.on_output,
        on_end=task.on_end,
    )
