"""What a check is and what it finds. Checks are plain functions in a list; one that raises has failed, with its error.

A check costs memory by the copies of the model it makes. Those that do not fit are skipped, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_lab.core.errors import LabError

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        status: `skip` says that the question does not arise here, or could not be asked.
        measured: what was seen, with its unit.
        tolerance: what it may be.
        advice: why it matters and what to do; of a check that holds, a remark worth reading.
        name, group: of the check; set by `examine`.
    """

    status: Status
    measured: str
    tolerance: str = ""
    advice: str = ""
    name: str = ""
    group: str = ""


def found(holds: bool, measured: str, tolerance: str = "", advice: str = "") -> Finding:
    """A finding whose advice is only given when the check does not hold."""
    return Finding("pass" if holds else "fail", measured, tolerance, "" if holds else advice)


def within(value: float, limit: float, unit: str, advice: str, *, of: str = "largest difference") -> Finding:
    """A finding about a number that must be finite and at most `limit`."""
    return found(value <= limit, f"{of} {value:.2g} {unit}", f"≤ {limit:.2g}", advice)


@dataclass(frozen=True)
class Check:
    """One question.

    Attributes:
        name: what is checked, a few words.
        ask: takes the subject of the examination and answers.
        copies: models' worth of memory it needs beside the subject, in float32.
    """

    name: str
    ask: Callable[[Any], Finding]
    copies: int = 0


def examine(group: str, checks: Sequence[Check], subject: Any, *, room: float = float("inf")) -> Iterator[Finding]:
    """The finding of every check, in order.

    Args:
        room: copies of the model that fit into free memory.
    """
    for check in checks:
        if check.copies > room:
            reason = f"needs memory for {check.copies} more copies of the model, {room:.1f} fit"
            answer = Finding("skip", reason, advice="run it on a machine with more memory, or on a smaller model")
        else:
            answer = _ask(check, subject)
        yield Finding(answer.status, answer.measured, answer.tolerance, answer.advice, check.name, group)


def _ask(check: Check, subject: Any) -> Finding:
    try:
        return check.ask(subject)
    except Exception as error:  # whatever a model, a tokenizer or a library does wrong is what the doctor looks for
        text = str(error).strip() or "no message"
        said = text if isinstance(error, LabError) else f"{type(error).__name__}: {text.splitlines()[0][:200]}"
        return Finding("fail", "the check itself failed", "no error", said)
