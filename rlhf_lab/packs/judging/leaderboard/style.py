"""What of a reply is style: its length, and its Markdown lists, bold text and headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from rlhf_lab.core.types import FloatArray

LIST_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\S", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")
HEADER = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)

STYLE: dict[str, Callable[[str], int]] = {
    "length": len,
    "lists": lambda text: len(LIST_ITEM.findall(text)),
    "bold": lambda text: len(BOLD.findall(text)),
    "headers": lambda text: len(HEADER.findall(text)),
}
"""Name → count in a reply. Lengths are characters, which need no tokenizer and exist in every language."""


def style_differences(first: Sequence[str], second: Sequence[str]) -> dict[str, FloatArray]:
    """Name → (N,) (a − b)/(a + b) of the counts a and b in the two replies; 0 where both are 0.

    A difference in proportion, from −1 to 1: a hundred characters more mean less in a long reply.
    """
    return {name: _relative(_counts(count, first), _counts(count, second)) for name, count in STYLE.items()}


def length_difference(first: Sequence[str], second: Sequence[str]) -> FloatArray:
    """(N,) characters that the first reply has more."""
    return _counts(len, first) - _counts(len, second)


def _counts(count: Callable[[str], int], texts: Sequence[str]) -> FloatArray:
    return np.array([count(text) for text in texts], dtype=np.float64)


def _relative(first_N: FloatArray, second_N: FloatArray) -> FloatArray:
    return (first_N - second_N) / np.maximum(first_N + second_N, 1)
