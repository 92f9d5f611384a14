"""The check of `doctor` on the sandbox: how well programs that a model writes can be isolated on this machine."""

from __future__ import annotations

from rlhf_lab.doctor.findings import Check, Finding, pass_or_fail
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC
from rlhf_lab.packs.code.sandbox.sandbox import why_not


def sandbox(_: object) -> Finding:
    """How well programs that a model writes can be isolated."""
    best = AUTOMATIC[0]
    reason = why_not(best)
    if not reason:
        return pass_or_fail(True, f"{best} works")
    other = next((level for level in AUTOMATIC[1:] if not why_not(level)), None)
    measured = f"{other} works, {best} does not: {reason}" if other else f"no isolation works: {reason}"
    return Finding("skip", measured, advice="reward=code_tests and code tasks need it: docs/code/sandbox.md")


CHECK = Check("sandbox", sandbox)
