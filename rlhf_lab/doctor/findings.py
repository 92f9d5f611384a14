"""Classes of a check and of its result.

Checks are functions in a list; a check that raises an exception counts as failed.

Checks that copy the model state the number of copies. A check is skipped if its copies do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.progress import tracked

Status = Literal["pass", "fail", "skip"]
Examined = TypeVar("Examined")
"""Type of the subject of a check: a directory, a model with its encoder, or nothing."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check.

    Attributes:
        status: `skip` if the check does not apply or could not run.
        hint: why the check matters and what to do; for a passed check, a note.
        name, group: name and group of the check; set by `examine`.
    """

    status: Status
    measured: str
    tolerance: str = ""
    hint: str = ""
    name: str = ""
    group: str = ""


def pass_or_fail(holds: bool, measured: str, tolerance: str = "", hint: str = "") -> CheckResult:
    """Return a result that shows its hint only if the check failed."""
    return CheckResult("pass" if holds else "fail", measured, tolerance, "" if holds else hint)


def within(value: float, limit: float, unit: str, hint: str, *, of: str = "largest difference") -> CheckResult:
    """Return the result of checking a number that must be finite and not above `limit`."""
    measured = f"{of} {value:.2g} {unit}"
    return pass_or_fail(value <= limit, measured, f"≤ {limit:.2g}", hint)


@dataclass(frozen=True)
class DoctorCheck(Generic[Examined]):
    """Definition of one check.

    Attributes:
        copies: number of float32 copies of the model that it needs in memory besides the subject.
    """

    name: str
    ask: Callable[[Examined], CheckResult]
    copies: int = 0


def examine(
    group: str, checks: Sequence[DoctorCheck[Examined]], subject: Examined, *, capacity: float = float("inf")
) -> Iterator[CheckResult]:
    """Yield the result of every check, in order.

    Args:
        capacity: number of copies of the model that fit into free memory.
    """
    for check in tracked(checks, group):
        if check.copies > capacity:
            reason = f"needs memory for {check.copies} more copies of the model, {capacity:.1f} fit"
            result = CheckResult("skip", reason, hint="run it on a machine with more memory, or on a smaller model")
            yield replace(result, name=check.name, group=group)
        else:
            yield examine_one(group, check, subject)


def examine_one(group: str, check: DoctorCheck[Examined], subject: Examined) -> CheckResult:
    """Return the result of one check; an exception becomes a failed result."""
    return replace(_run_check(check, subject), name=check.name, group=group)


def _run_check(check: DoctorCheck[Examined], subject: Examined) -> CheckResult:
    try:
        return check.ask(subject)
    except Exception as error:  # any error of a model, a tokenizer or a library is what the doctor looks for
        message = str(error).strip() or "no message"
        if not isinstance(error, LabError):  # messages of libraries may be pages long
            message = f"{type(error).__name__}: {message.splitlines()[0][:200]}"
        return CheckResult("fail", "the check itself failed", "no error", message)
