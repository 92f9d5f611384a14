"""Check of `doctor`: the isolation of model-written programs on this machine."""

from __future__ import annotations

from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC
from rlhf_lab.packs.code.sandbox.sandbox import why_not


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
