"""What a check is and what it finds. Checks are plain functions in a list; a check that raises counts as failed.

Checks that copy the model say how many copies they need. One whose copies do not fit into memory is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from rlhf_lab.core.errors import LabError

Status = Literal["pass", "fail", "skip"]
Examined = TypeVar("Examined")
"""What a check is asked about: a folder, a model with its encoder, or nothing."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        status: `skip` where the check does not apply, or could not run.
        measured: the value, with its unit.
        tolerance: the values that pass.
        advice: why it matters and what to do; a remark where the check passed.
        name, group: of the check; set by `examine`.
    """

    status: Status
    measured: str
    tolerance: str = ""
    advice: str = ""
    name: str = ""
    group: str = ""


def pass_or_fail(holds: bool, measured: str, tolerance: str = "", advice: str = "") -> Finding:
    """A finding that gives its advice only where the check failed."""
    return Finding("pass" if holds else "fail", measured, tolerance, "" if holds else advice)


def within(value: float, limit: float, unit: str, advice: str, *, of: str = "largest difference") -> Finding:
    """A finding about a number that must be finite and at most `limit`."""
    return pass_or_fail(value <= limit, f"{of} {value:.2g} {unit}", f"≤ {limit:.2g}", advice)


@dataclass(frozen=True)
class Check(Generic[Examined]):
    """One check.

    Attributes:
        name: what is checked, in a few words.
        ask: function from the subject of the examination to the finding.
        copies: how many float32 copies of the model it needs in memory besides the subject.
    """

    name: str
    ask: Callable[[Examined], Finding]
    copies: int = 0


def examine(
    group: str, checks: Sequence[Check[Examined]], subject: Examined, *, room: float = float("inf")
) -> Iterator[Finding]:
    """The finding of every check, in order.

    Args:
        room: copies of the model that fit into free memory.
    """
    for check in checks:
        if check.copies > room:
            reason = f"needs memory for {check.copies} more copies of the model, {room:.1f} fit"
            finding = Finding("skip", reason, advice="run it on a machine with more memory, or on a smaller model")
        else:
            finding = _run_check(check, subject)
        yield replace(finding, name=check.name, group=group)


def _run_check(check: Check[Examined], subject: Examined) -> Finding:
    """The finding of one check; an exception becomes a failed one."""
    try:
        return check.ask(subject)
    except Exception as error:  # any error of a model, a tokenizer or a library is something the doctor looks for
        message = str(error).strip() or "no message"
        if not isinstance(error, LabError):  # those of libraries may be pages long
            message = f"{type(error).__name__}: {message.splitlines()[0][:200]}"
        return Finding("fail", "the check itself failed", "no error", message)
