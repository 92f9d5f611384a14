"""What a judge answered, read tolerantly but never guessed: an answer without a verdict is unscored, and no tie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlhf_lab.core.files import parse_json
from rlhf_lab.packs.judging.judges.requests import Reply, Stop

Unscored = Literal["refused", "truncated", "invalid"]
REASONS: tuple[Unscored, ...] = ("refused", "truncated", "invalid")
"""Why an answer has no verdict: the model declined, the answer was cut off, or it is not in the form asked for."""
STOPS: Mapping[Stop, Unscored] = {"refused": "refused", "truncated": "truncated"}


def read_object(reply: Reply) -> tuple[dict[str, Any], Unscored | None]:
    """(the JSON object of an answer, keys in lower case; why there is none). The object may stand in other text.

    From the first brace to the last: an answer that quotes an object of the reply it judges, and then gives its own,
    is no JSON and so unscored, where taking either of the two could take the forged one.
    """
    if reply.stop in STOPS:
        return {}, STOPS[reply.stop]
    text = reply.text
    try:
        answer = parse_json(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:  # no braces, or no JSON between them
        return {}, "invalid"
    if not isinstance(answer, dict):
        return {}, "invalid"
    return {str(name).strip().lower(): value for name, value in answer.items()}, None


def reason_of(answer: Mapping[str, Any]) -> str:
    """The judge's reason; "" where it gave none."""
    reason = answer.get("reason")
    return reason if isinstance(reason, str) else ""


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an object that has all of these properties and no other."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
