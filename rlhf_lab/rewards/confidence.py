"""Stated confidence of a response: "Confidence: 8/10", "confidence is 80 %", "I am 9 out of 10 sure".

A bare number is read on the scale of 0 to 10 that PPO-C requests from its policy (arXiv:2410.09724), unless it can only
be a percentage (85) or is written as a fraction (0.85). Words ("fairly confident") are ignored.
"""

from __future__ import annotations

import math
import re

NUMBER = r"(?P<{0}>\d{{1,4}}(?:\.\d{{1,4}})?)"
SCALE = r"(?P<{0}>%|percent\b|/\s?\d{{1,4}}|out of \d{{1,4}})"
# The number follows the word ("confidence: 8/10") or, then with a scale, precedes it ("9 out of 10 sure").
STATED = re.compile(
    r"\bconfidence(?: level| score)?(?:\*\*)?\s?(?::|=|is|of)?(?:\*\*)?\s?"  # asterisks: bold
    + NUMBER.format("after")
    + rf"(?:\s?{SCALE.format('scale_after')})?"
    + r"|\b(?:I am |I'm )?"
    + NUMBER.format("before")
    + rf"\s?{SCALE.format('scale_before')}\s(?:confident|sure|certain)\b",
    re.IGNORECASE,
)


def stated_confidence(text: str) -> float:
    """Return the last stated confidence of a response, in [0, 1]; larger numbers count as 1, NaN if there is none."""
    values = [_confidence_of(match) for match in STATED.finditer(text)]
    readable = [value for value in values if not math.isnan(value)]
    return readable[-1] if readable else math.nan


def without_confidence(text: str) -> str:
    """Remove statements of confidence with their final punctuation. A text without a statement is unchanged."""
    statement = rf"[ \t]?(?:\*\*)?(?:{STATED.pattern})(?:\*\*)?[ \t]?[.,;!]?"
    stripped, statements = re.subn(statement, "", text, flags=re.IGNORECASE)
    return stripped.strip() if statements else text


def _confidence_of(match: re.Match[str]) -> float:
    """Return the number of a statement divided by the maximum of its scale, at most 1; NaN for a scale of 0."""
    number = match["after"] or match["before"]
    scale = match["scale_after"] or match["scale_before"] or ""
    scale_top = re.search(r"\d+", scale)
    if scale_top:  # "/10", "out of 10"
        top = float(scale_top[0])
    elif scale:  # "%", "percent"
        top = 100.0
    elif "." in number and float(number) <= 1:
        top = 1.0
    else:
        top = 10.0 if float(number) <= 10 else 100.0
    return min(1.0, float(number) / top) if top else math.nan
