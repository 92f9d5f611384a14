"""Probes, which are attacks on the sandbox, and their execution at a level.

Each probe prints what it reached ("ESCAPED: …") or what stopped it ("stopped: …"), and `targets.py` also checks its
effects from outside. Probes are bounded, so that they are harmless if nothing stops them. For example, the fork bomb
only exceeds the limit by a small factor, and the signal to all processes is signal 0.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_lab.packs.code.sandbox.grader import HiddenTests, ProgramGrader
from rlhf_lab.packs.code.sandbox.jail.seccomp import AUDIT_ARCH, CLONE3, OF_ITSELF, REFUSED, SOCKETS
from rlhf_lab.packs.code.sandbox.outcome import Level
from rlhf_lab.packs.code.sandbox.probes import reach, use
from rlhf_lab.packs.code.sandbox.probes.candidates import CANDIDATES, TESTS
from rlhf_lab.packs.code.sandbox.probes.targets import (
    DISK_MIB,
    GIVEN,
    MEMORY_MIB,
    PROCESSES,
    TIMEOUT_S,
    ProbeTargets,
    probe_targets,
)
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

PRELUDE = """
import ctypes, errno, mmap, os, resource, signal, socket, stat, sys, time
NUMBERS = {numbers}
TARGETS = {targets}
libc = ctypes.CDLL(None, use_errno=True)

def escaped(what):
    print("ESCAPED:", what, flush=True)
    os._exit(0)

def stopped(by):
    print("stopped:", by, flush=True)
    os._exit(0)

def call(name, *arguments):
    # A system call that should not get through: refused by the filter, or by rights that are missing.
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *longs)
    code = errno.errorcode.get(ctypes.get_errno(), "?")
    if result >= 0 or code not in ("EPERM", "ENOSYS", "EACCES"):
        escaped(name + (" succeeds" if result >= 0 else " reaches the kernel: " + code))
    stopped(name + ": " + code)

def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 16)

def attack():
{body}

try:
    attack()
except (Exception, SystemExit) as error:
    stopped(type(error).__name__ + ": " + str(error)[:80])
stopped("nothing was reached")
"""
BETTER = ("passed", "unsupported")
"""Grades that count as an escape of a candidate. An `unsupported` program would be excluded from all means."""


@dataclass(frozen=True)
class Probe:
    """One attack.

    Attributes:
        name: description of the attack.
        kind: category of the target.
        body: Python statements; `escaped`, `stopped`, `call`, `read` and `TARGETS` are defined.
        limit: expected status if a limit of the sandbox must stop it; empty otherwise.
        keep: True to read back its files and start another program with them.
    """

    name: str
    kind: str
    body: str
    limit: str = ""
    keep: bool = False

    def program(self, targets: dict[str, object]) -> str:
        """Return the complete program of the attack, given the targets (`ProbeTargets.values`)."""
        machine = os.uname().machine
        column = list(AUDIT_ARCH).index(machine) if machine in AUDIT_ARCH else 0
        of_itself = {name: pair for name, (pair, _) in OF_ITSELF.items()}
        pairs = {**REFUSED, **of_itself, **SOCKETS, "clone3": CLONE3}
        numbers = {name: pair[column] for name, pair in pairs.items()}
        lines = textwrap.indent(self.body.strip(), "    ")
        # `replace` instead of `format`, because the prelude and the bodies contain braces
        program = PRELUDE.replace("{numbers}", repr(numbers))
        program = program.replace("{targets}", repr(targets))
        return program.replace("{body}", lines)


def _probes(kind: str, bodies: Mapping[str, str], *, limit: str = "", keep: bool = False) -> list[Probe]:
    return [Probe(name, kind, body, limit, keep) for name, body in bodies.items()]


PROBES = (
    *_probes("network", reach.NETWORK),
    *_probes("files", reach.FILES),
    *_probes("files", reach.LEFT_FILES, keep=True),
    *_probes("secrets", reach.SECRETS),
    *_probes("processes", reach.PROCESSES),
    *_probes("memory", use.MEMORY),
    *_probes("disk", use.DISK),
    *_probes("time", use.TIME, limit="timeout"),
    *_probes("output", use.OUTPUT, limit="output"),
    *_probes("kernel", use.KERNEL),
)


@dataclass(frozen=True)
class ProbeResult:
    """Result of one probe.

    Attributes:
        escaped: True if it reached its target.
        by: what stopped it, or what it reached.
    """

    name: str
    kind: str
    level: Level
    escaped: bool
    by: str


def probe_level(level: Level) -> list[ProbeResult]:
    """Run all probes at a level, including those of the grader. This takes about 10 s of processor time."""
    settings = Sandboxing(
        level=level, timeout_s=TIMEOUT_S, memory_mib=MEMORY_MIB, disk_mib=DISK_MIB, processes=PROCESSES
    )
    sandbox = Sandbox(settings)
    with probe_targets() as targets:
        findings = [run_probe(probe, sandbox, level, targets) for probe in PROBES]
    return [*findings, *_run_candidates(sandbox, level)]


def run_probe(probe: Probe, sandbox: Sandbox, level: Level, targets: ProbeTargets) -> ProbeResult:
    """Run one probe against the targets and return its result."""

    def result(escaped: bool, by: str) -> ProbeResult:
        return ProbeResult(probe.name, probe.kind, level, escaped, by)

    files = {GIVEN: b"given"}
    keep = probe.keep and level != "container"  # containers do not return files
    try:
        outcome = sandbox.run(probe.program(targets.values()), files=files, keep=keep)
        if keep:
            # files left by a probe must not affect the next program
            next_outcome = sandbox.run("print('next')", files=outcome.next_files(files))
            if next_outcome.stdout != "next\n":
                return result(True, f"the next program: {next_outcome.stderr[-80:]}")
    except Exception as error:  # the level works for other programs, so this error is an effect of the probe
        return result(True, f"the sandbox broke: {str(error)[:80]}")
    if outcome.lost:
        return result(True, f"the sandbox broke: {outcome.lost[:80]}")
    reached = targets.effects_seen(outcome)
    escape = next((line for line in outcome.stdout.splitlines() if line.startswith("ESCAPED:")), "")
    # these probes exit with status 3, so `ok` without output means that a forged report was accepted
    forged = probe.name.startswith("forged") and outcome.status == "ok" and not outcome.stdout
    if escape or reached or forged:
        return result(True, escape.removeprefix("ESCAPED: ") or reached or "forged")
    if probe.limit:
        return result(outcome.status != probe.limit, f"status {outcome.status}")
    text = next((line for line in outcome.stdout.splitlines() if line.startswith("stopped:")), "")
    return result(False, text.removeprefix("stopped: ") or f"status {outcome.status}, exit {outcome.exit}")


def _run_candidates(sandbox: Sandbox, level: Level) -> list[ProbeResult]:
    programs = [(code, HiddenTests((TESTS[name],), entry_point="answer")) for name, code in CANDIDATES.items()]
    grades = ProgramGrader(sandbox).grade_many(programs)
    return [
        ProbeResult(name, "grader", level, grade.status in BETTER, f"{grade.status}: {grade.message[:100]}")
        for name, grade in zip(CANDIDATES, grades, strict=True)
    ]


def cost(sandbox: Sandbox, level: Level, runs: int = 10) -> tuple[float, float]:
    """Return wall and processor time in ms of an empty program, including the launcher. Programs run in sequence."""
    before = os.times()
    outcomes = [sandbox.run("pass") for _ in range(runs)]
    after = os.times()
    used = sum(after[:4]) - sum(before[:4])
    return 1000 * sum(outcome.wall_s for outcome in outcomes) / runs, 1000 * used / runs
