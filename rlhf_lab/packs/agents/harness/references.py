"""References to earlier results in a plan: #1 is the result of the first step or query."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

REFERENCE = re.compile(r"#(\d{1,4})(?!\d)")


def references(text: str, count: int) -> list[int]:
    """Return the numbers from 1 to `count` that a text refers to; any other number is ordinary text."""
    numbers = [int(number) for number in REFERENCE.findall(text)]
    return [number for number in numbers if 1 <= number <= count]


def with_results(value: Any, results: Sequence[str]) -> Any:
    """Insert the results that a text refers to, also into texts inside a JSON value."""
    if isinstance(value, Mapping):
        return {name: with_results(inner, results) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_results(inner, results) for inner in value]
    if not isinstance(value, str):
        return value

    def result(reference: re.Match[str]) -> str:
        number = int(reference[1])
        # A reference to a later step or to step 0 stays as text: there is no such result.
        if not 1 <= number <= len(results):
            return reference[0]
        return results[number - 1]

    return REFERENCE.sub(result, value)
