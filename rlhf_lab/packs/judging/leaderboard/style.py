"""Style of a response: its length, and its Markdown lists, bold text and headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from rlhf_lab.core.types import FloatArray

# Markdown syntax at the start of a line, or in pairs of markers
LIST_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\S", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")  # within a line
HEADER = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
# blocks of code, of which the last may have no end, and code within a line
CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)

STYLE: dict[str, Callable[[str], int]] = {
    "length": len,
    "lists": lambda text: _count_outside_code(LIST_ITEM, text),
    "bold": lambda text: _count_outside_code(BOLD, text),
    "headers": lambda text: _count_outside_code(HEADER, text),
}
"""Name → count in a response. Length is in characters, which need no tokenizer and exist in every language."""


def _count_outside_code(pattern: re.Pattern[str], text: str) -> int:
    # "# comment" and "__init__" are no Markdown in code
    return len(pattern.findall(CODE.sub("", text)))


def style_differences(first: Sequence[str], second: Sequence[str]) -> dict[str, FloatArray]:
    """Return name → (N,) (a − b)/(a + b) of the counts a and b in the two responses; 0 if both are 0.

    The difference is relative, from −1 to 1, because a hundred more characters matter less in a long response.
    """
    differences = {}
    for name, count in STYLE.items():
        differences[name] = _relative(_counts(count, first), _counts(count, second))
    return differences


def length_difference(first: Sequence[str], second: Sequence[str]) -> FloatArray:
    """Return (N,) the characters of the first response minus those of the second."""
    return _counts(len, first) - _counts(len, second)


def _counts(count: Callable[[str], int], texts: Sequence[str]) -> FloatArray:
    return np.array([count(text) for text in texts], dtype=np.float64)


def _relative(first_N: FloatArray, second_N: FloatArray) -> FloatArray:
    # counts are integers, so 1 replaces only a sum of 0
    return (first_N - second_N) / np.maximum(first_N + second_N, 1)
