"""Execution of all probes at a level. Reports what stopped each probe, or that it escaped."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_lab.packs.code.sandbox.grader import HiddenTests, ProgramGrader
from rlhf_lab.packs.code.sandbox.outcome import Level
from rlhf_lab.packs.code.sandbox.probes import reach, use
from rlhf_lab.packs.code.sandbox.probes.candidates import CANDIDATES, TESTS
from rlhf_lab.packs.code.sandbox.probes.probe import Probe
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

PROBES = (*reach.NETWORK, *reach.FILES, *reach.SECRETS, *reach.PROCESSES, *use.RESOURCES, *use.KERNEL)

BETTER = ("passed", "unsupported")
"""Grades that count as an escape of a candidate. An `unsupported` program would be excluded from all means."""


@dataclass(frozen=True)
class ProbeResult:
    """Result of one probe.

    Attributes:
        name, kind: name and category of the probe.
        level: level of isolation.
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
    files = {GIVEN: b"given"}
    keep = probe.keep and level != "container"  # containers do not return files
    try:
        outcome = sandbox.run(probe.program(targets.values()), files=files, keep=keep)
        if keep:
            # files left by a probe must not affect the next program
            next_outcome = sandbox.run("print('next')", files=outcome.next_files(files))
            if next_outcome.stdout != "next\n":
                return ProbeResult(
                    probe.name, probe.kind, level, True, f"the next program: {next_outcome.stderr[-80:]}"
                )
    except Exception as error:  # the level works for other programs, so this error is an effect of the probe
        return ProbeResult(probe.name, probe.kind, level, True, f"the sandbox broke: {str(error)[:80]}")
    if outcome.lost:
        return ProbeResult(probe.name, probe.kind, level, True, f"the sandbox broke: {outcome.lost[:80]}")
    reached = targets.effects_seen(outcome)
    escape = next((line for line in outcome.stdout.splitlines() if line.startswith("ESCAPED:")), "")
    # these probes exit with status 3, so `ok` without output means that a forged report was accepted
    forged = probe.name.startswith("forged") and outcome.status == "ok" and not outcome.stdout
    if escape or reached or forged:
        return ProbeResult(probe.name, probe.kind, level, True, escape.removeprefix("ESCAPED: ") or reached or "forged")
    if probe.limit:
        return ProbeResult(probe.name, probe.kind, level, outcome.status != probe.limit, f"status {outcome.status}")
    text = next((line for line in outcome.stdout.splitlines() if line.startswith("stopped:")), "")
    by = text.removeprefix("stopped: ") or f"status {outcome.status}, exit {outcome.exit}"
    return ProbeResult(probe.name, probe.kind, level, False, by)


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
