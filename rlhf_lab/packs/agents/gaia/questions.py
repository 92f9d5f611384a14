"""Record of one GAIA question, official or built-in; the form of its answer, and how it is found in an agent's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ANSWER_FORMAT = """\
Work on the question step by step, and call tools where they help. When you know the answer, close with one line:
FINAL ANSWER: <the answer>
The answer is a number, or as few words as possible, or a list of these separated by commas.
- Number: digits only, without commas between them, and without a unit such as $ or % unless the question asks for one.
- Words: no article, no abbreviation, and digits written as digits, unless the question says otherwise.
- List: each element by these rules, in the order that the question asks for."""
"""Instructions for the form of the answer. The official scorer marks many deviations from it as wrong."""

MARKER = re.compile(r"final\s+answer\s*[*_]*\s*:", re.IGNORECASE)  # also "**Final Answer**:"
EMPHASIS = "*` \t"
BRACKETS = (("<", ">"), ("[", "]"))
"""Emphasis marks and template brackets that are removed around an answer. Quotes stay: the answer may contain them."""


@dataclass(frozen=True, slots=True)
class GaiaQuestion:
    """A question and its annotations.

    Attributes:
        id: id, unique in its set.
        question: text of the question.
        level: 1 (few steps), 2, or 3 (many steps and tools).
        answer: the gold answer; None if it is secret, as in the official test split.
        files: name of an attachment → its location in the set.
        steps: the annotator's calls in order, each as {"tool": …, "arguments": {…}}; empty if the set has none.
    """

    id: str
    question: str
    level: int
    answer: str | None
    # The fields below are optional annotations.
    files: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()


def final_answer(text: str) -> str | None:
    """Return the answer after the last "FINAL ANSWER:": the rest of its line, or else the next line with text.

    Return None if there is no marker, or if no text follows it.
    """
    markers = list(MARKER.finditer(text))
    if not markers:
        return None
    for line in text[markers[-1].end() :].splitlines():
        answer = _unwrap(line)
        if answer:
            return answer
    return None


def _unwrap(line: str) -> str:
    answer = line.strip(EMPHASIS)
    for opening, closing in BRACKETS:
        # Brackets are removed only if they enclose the entire answer: "[a] and [b]" stays.
        if answer.startswith(opening) and answer.find(closing) == len(answer) - 1:
            return answer[1:-1].strip(EMPHASIS)
    return answer
