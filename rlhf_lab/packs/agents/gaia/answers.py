"""Form of an agent's answer, and its extraction from the agent's text."""

from __future__ import annotations

import re

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
