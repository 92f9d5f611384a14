"""Runs every probe at a level, and says what stopped each or that nothing did."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.config.sections import Sandboxing
from rlhf_lab.sandbox.grader import Grader, Tests
from rlhf_lab.sandbox.outcome import Level, Outcome, SandboxError
from rlhf_lab.sandbox.probes import CANDIDATES, HIDDEN_TEST, PROBES, Probe
from rlhf_lab.sandbox.sandbox import Sandbox

SECRET = "RLHF_LAB_PROBE_SECRET"
MEMORY_MIB, DISK_MIB, PROCESSES, TIMEOUT_S = 128, 4, 8, 4.0
"""Limits of the probes: small, so that exceeding them is quick and does no harm."""


@dataclass(frozen=True)
class Finding:
    """What came of one probe.

    Attributes:
        escaped: whether it reached what it tried to reach.
        by: what stopped it, or what it reached.
    """

    name: str
    kind: str
    level: Level
    escaped: bool
    by: str


class Scene:
    """What there is to reach: sockets, a file, a process of the same user, a secret in its environment. See `scene`."""

    def __init__(self, stack: ExitStack):
        self.word = secrets.token_bytes(16)
        self.mark = f"rlhf_lab-probe-{secrets.token_hex(8)}"
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlhf_lab-probes-")))
        self.canary = self.folder / "canary"
        self.canary.write_bytes(self.word)
        self._tcp = self._listen(stack, socket.AF_INET, ("127.0.0.1", 0))
        self._abstract = self._listen(stack, socket.AF_UNIX, f"\0{self.mark}")
        self._unix = self._listen(stack, socket.AF_UNIX, str(self.folder / "socket"))
        self._udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._udp.bind(("127.0.0.1", 0))
        self._udp.setblocking(False)
        sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        self.victim = subprocess.Popen(sleeping, env={**os.environ, SECRET: self.mark})
        stack.callback(self._end_victim)
        os.environ[SECRET] = self.mark
        stack.callback(os.environ.pop, SECRET, None)

    def _listen(self, stack: ExitStack, family: int, address: object) -> socket.socket:
        server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        server.bind(address)  # type: ignore[arg-type]
        server.listen()
        return server

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()

    def values(self) -> dict[str, object]:
        """What probes know of it."""
        home = Path.home()
        names = sorted(os.listdir(home)) if os.access(home, os.R_OK) else []
        shown = {".pyenv", "miniconda3", "anaconda3"}  # the interpreter may lie there
        return {
            "word": self.word,
            "mark": self.mark,
            "folder": str(self.folder),
            "canary": str(self.canary),
            "tcp": self._tcp.getsockname(),
            "udp": self._udp.getsockname(),
            "abstract": f"\0{self.mark}",
            "unix": str(self.folder / "socket"),
            "home": str(home),
            "home_names": [name for name in names if name not in shown],
            "source": str(Path(__file__)),
            "secret_name": SECRET,
            "victim": self.victim.pid,
            "memory": MEMORY_MIB << 20,
            "disk_mib": DISK_MIB,
            "processes": PROCESSES,
        }

    def reached(self, outcome: Outcome) -> str:
        """What a program reached, seen from outside; empty where nothing is seen."""
        content = b"".join(outcome.files.values())
        if self.word in content or self.word in outcome.stdout.encode("utf-8", "surrogatepass"):
            return "the content of a file of this user"
        if self.victim.poll() is not None:
            self.victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
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
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    return f"process {folder.name} is still there"
        return ""


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene, which is taken down at the end."""
    with ExitStack() as stack:
        yield Scene(stack)


def probe_level(level: Level, image: str = Sandboxing.image) -> list[Finding]:
    """Run every probe at a level, those of the grader too. Takes about 10 s of processor time."""
    settings = Sandboxing(
        level=level,
        timeout_s=TIMEOUT_S,
        memory_mib=MEMORY_MIB,
        disk_mib=DISK_MIB,
        processes=PROCESSES,
        image=image,
    )
    sandbox = Sandbox(settings)
    with scene() as there:
        values = there.values()
        findings = [_run(probe, sandbox, level, there, values) for probe in PROBES]
    return [*findings, *_run_candidates(sandbox, level)]


def _run(probe: Probe, sandbox: Sandbox, level: Level, there: Scene, values: dict[str, object]) -> Finding:
    try:
        outcome = sandbox.run(probe.program(values), keep=probe.keep and level != "container")
    except SandboxError as error:  # the level works, so that it is the probe that broke it
        return Finding(probe.name, probe.kind, level, True, f"the sandbox broke: {str(error)[:80]}")
    reached = there.reached(outcome)
    escape = next((line for line in outcome.stdout.splitlines() if line.startswith("ESCAPED:")), "")
    forged = probe.name.startswith("forged") and outcome.status == "ok" and not outcome.stdout
    if escape or reached or forged:
        return Finding(probe.name, probe.kind, level, True, escape.removeprefix("ESCAPED: ") or reached or "forged")
    if probe.limit:
        return Finding(probe.name, probe.kind, level, outcome.status != probe.limit, f"status {outcome.status}")
    said = next((line for line in outcome.stdout.splitlines() if line.startswith("stopped:")), "")
    by = said.removeprefix("stopped: ") or f"status {outcome.status}, exit {outcome.exit}"
    return Finding(probe.name, probe.kind, level, False, by)


def _run_candidates(sandbox: Sandbox, level: Level) -> list[Finding]:
    tests = Tests((HIDDEN_TEST,), entry_point="answer")
    grades = Grader(sandbox).grade_many([(code, tests) for code in CANDIDATES.values()])
    return [
        Finding(name, "grader", level, grade.status == "passed", f"{grade.status}: {grade.message[:100]}")
        for name, grade in zip(CANDIDATES, grades, strict=True)
    ]


def cost(sandbox: Sandbox, level: Level, runs: int = 10) -> tuple[float, float]:
    """(wall, processor) milliseconds of a program that does nothing, one at a time; of the launcher too."""
    before = os.times()
    outcomes = [sandbox.run("pass") for _ in range(runs)]
    after = os.times()
    used = sum(after[:4]) - sum(before[:4])
    return 1000 * sum(outcome.wall_s for outcome in outcomes) / runs, 1000 * used / runs
