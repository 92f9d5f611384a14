"""Runs every probe at a level, and says what stopped each or that nothing did."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlhf_lab.packs.code.sandbox.grader import Grader, HiddenTests
from rlhf_lab.packs.code.sandbox.outcome import Level, SandboxError
from rlhf_lab.packs.code.sandbox.probes import reach, use
from rlhf_lab.packs.code.sandbox.probes.candidates import CANDIDATES, TESTS
from rlhf_lab.packs.code.sandbox.probes.probe import Probe
from rlhf_lab.packs.code.sandbox.probes.scene import DISK_MIB, MEMORY_MIB, PROCESSES, TIMEOUT_S, Scene, scene
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

PROBES = (*reach.NETWORK, *reach.FILES, *reach.SECRETS, *reach.PROCESSES, *use.RESOURCES, *use.KERNEL)


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
        findings = [run_probe(probe, sandbox, level, there) for probe in PROBES]
    return [*findings, *_run_candidates(sandbox, level)]


def run_probe(probe: Probe, sandbox: Sandbox, level: Level, there: Scene) -> Finding:
    """What one probe comes to in a scene."""
    try:
        outcome = sandbox.run(probe.program(there.values()), keep=probe.keep and level != "container")
    except SandboxError as error:  # the level works, so that it is the probe that broke it
        return Finding(probe.name, probe.kind, level, True, f"the sandbox broke: {str(error)[:80]}")
    if outcome.lost:
        return Finding(probe.name, probe.kind, level, True, f"the sandbox broke: {outcome.lost[:80]}")
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
    programs = [(code, HiddenTests((TESTS[name],), entry_point="answer")) for name, code in CANDIDATES.items()]
    grades = Grader(sandbox).grade_many(programs)
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
