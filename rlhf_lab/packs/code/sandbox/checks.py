"""Checks of the isolation of model-written programs on this machine: for `doctor`, and before a run."""

from __future__ import annotations

from rlhf_lab.config.root import Config
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC
from rlhf_lab.packs.code.sandbox.outcome import SandboxUnavailable
from rlhf_lab.packs.code.sandbox.sandbox import choose_level, why_not
from rlhf_lab.packs.code.sandbox.settings import keeps_files, runs_code


def sandbox(_: object) -> CheckResult:
    """Check if the best level of isolation works, or else which one does."""
    best = AUTOMATIC[0]
    reason = why_not(best)
    if not reason:
        return pass_or_fail(True, f"{best} works")
    other = next((level for level in AUTOMATIC[1:] if not why_not(level)), None)
    measured = f"{other} works, {best} does not: {reason}" if other else f"no isolation works: {reason}"
    return CheckResult("skip", measured, hint="reward=code_tests and code tasks need it: docs/code/sandbox.md")


CHECK = DoctorCheck("sandbox", sandbox)


def problems(config: Config) -> list[str]:
    """Return the reasons why the programs of a stage cannot be isolated; empty if the stage runs no programs."""
    measures_by_running = "rollout" in config.algorithm.inputs.sections and getattr(config.verifier, "runs_code", False)
    if not (runs_code(config) or measures_by_running):
        return []
    try:
        # runs a small program; the result is cached per process
        choose_level(config.sandbox, keep=keeps_files(config))
    except SandboxUnavailable as error:
        return [str(error)]
    return []
