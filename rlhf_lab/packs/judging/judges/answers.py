"""Parsing of a judge's answers: tolerant, but without guessing. An answer without a verdict is unscored, not a tie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlhf_lab.core.files import parse_json
from rlhf_lab.packs.judging.judges.requests import Completion, Stop

Unscored = Literal["refused", "truncated", "invalid", "unanswered"]
REASONS: tuple[Unscored, ...] = ("refused", "truncated", "invalid")
"""Reasons why an answer has no verdict: the model refused, the answer was truncated, or its form is wrong."""
STOPS: Mapping[Stop, Unscored] = {"refused": "refused", "truncated": "truncated", "unanswered": "unanswered"}


def read_object(response: Completion) -> tuple[dict[str, Any], Unscored | None]:
    """Return (the JSON object of an answer with lower-case keys, the reason if there is none).

    Other text may surround the object. It is read from the first brace to the last: an answer that quotes an object of
    the response and then gives its own is invalid. Choosing one of the two objects could choose the forged one.
    """
    # a truncated answer may contain a complete object by accident
    if response.stop in STOPS:
        return {}, STOPS[response.stop]
    text = response.text
    try:
        start, end = text.index("{"), text.rindex("}") + 1
        answer = parse_json(text[start:end])
    except ValueError:  # no braces, or no JSON between them
        return {}, "invalid"
    if not isinstance(answer, dict):
        return {}, "invalid"
    return {str(name).strip().lower(): value for name, value in answer.items()}, None


def reason_of(answer: Mapping[str, Any]) -> str:
    """Return the judge's reason, or "" if it gave none."""
    reason = answer.get("reason")
    return reason if isinstance(reason, str) else ""


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
