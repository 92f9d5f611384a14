"""Targets of the probes: sockets, a file, a process of the same user, and a secret in its environment."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rlhf_lab.packs.code.sandbox.outcome import ProgramOutcome

SECRET = "RLHF_LAB_PROBE_SECRET"
GIVEN = "given"
"""Name of a file that each probe has in its directory at the start."""
MEMORY_MIB, DISK_MIB, PROCESSES, TIMEOUT_S = 128, 4, 8, 4.0
"""Limits of the probes. They are small, so that exceeding them is fast and harmless."""


class ProbeTargets:
    """Targets of the probes, created by `probe_targets`. It also checks from outside which targets were reached."""

    def __init__(self, stack: ExitStack):
        self.word = secrets.token_bytes(16)
        self.mark = f"rlhf_lab-probe-{secrets.token_hex(8)}"
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlhf_lab-probes-")))
        self.canary = self.directory / "canary"
        self.canary.write_bytes(self.word)
        self._tcp = self._listen(stack, socket.AF_INET, ("127.0.0.1", 0))
        # an abstract socket belongs to the network namespace and not to the file system, so it needs its own probe
        self._abstract = self._listen(stack, socket.AF_UNIX, f"\0{self.mark}")
        self._unix = self._listen(stack, socket.AF_UNIX, str(self.directory / "socket"))
        self._udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._udp.bind(("127.0.0.1", 0))
        self._udp.setblocking(False)
        # a process of the same user, which probes try to find, to kill and to read the environment of
        os.environ[SECRET] = self.mark
        stack.callback(os.environ.pop, SECRET, None)
        self.victim = self._start_victim()
        stack.callback(self._end_victim)

    def _listen(self, stack: ExitStack, family: int, address: object) -> socket.socket:
        server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        server.bind(address)  # type: ignore[arg-type]
        server.listen()
        return server

    def _start_victim(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def values(self) -> dict[str, object]:
        """Return the targets as a probe's program reads them in `TARGETS`: paths, addresses, process id, limits."""
        home = Path.home()
        names = sorted(os.listdir(home)) if os.access(home, os.R_OK) else []
        shown = {".pyenv", "miniconda3", "anaconda3"}  # visible in the sandbox if the interpreter is there
        return {
            "word": self.word,
            "mark": self.mark,
            "folder": str(self.directory),
            "canary": str(self.canary),
            "tcp": self._tcp.getsockname(),
            "udp": self._udp.getsockname(),
            "abstract": f"\0{self.mark}",
            "unix": str(self.directory / "socket"),
            "home": str(home),
            "home_names": [name for name in names if name not in shown],
            "source": str(Path(__file__)),
            "secret_name": SECRET,
            "victim": self.victim.pid,
            "memory": MEMORY_MIB << 20,
            "disk_mib": DISK_MIB,
            "processes": PROCESSES,
            "given": GIVEN,
        }

    def effects_seen(self, outcome: ProgramOutcome) -> str:
        """Return the target that a program reached, judged by effects outside the sandbox; empty if none."""
        content = b"".join((outcome.files or {}).values())
        # `word` is random, so its appearance in files or output proves that the file was read
        if self.word in content or self.word in outcome.stdout.encode("utf-8", "surrogatepass"):
            return "the content of a file of this user"
        if "ESCAPED:" in outcome.stdout:
            # a process ends some time after its signal, and its end must not be attributed to the next probe
            with suppress(subprocess.TimeoutExpired):
                self.victim.wait(timeout=0.2)
        if self.victim.poll() is not None:
            self.victim = self._start_victim()
            return "a process of this user"
        with suppress(BlockingIOError):
            self._udp.recv(64)
            return "this machine's network"
        if Path(f"{tempfile.gettempdir()}/{self.mark}").exists():
            Path(f"{tempfile.gettempdir()}/{self.mark}").unlink()
            return "the folder for temporary files of all"
        if Path(f"{self.canary}.new").exists():
            Path(f"{self.canary}.new").unlink()
            return "a folder of this user"
        return self._survivor()

    def _survivor(self) -> str:
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (directory / "cmdline").read_bytes().split(b"\0"):
                    return f"process {directory.name} is still there"
        return ""


@contextmanager
def probe_targets() -> Iterator[ProbeTargets]:
    """Context manager that creates the targets of the probes and removes them at the end."""
    with ExitStack() as stack:
        yield ProbeTargets(stack)
