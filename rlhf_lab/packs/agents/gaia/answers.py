"""How an agent gives its answer, and where in its text the answer is."""

from __future__ import annotations

import re

ANSWER_FORMAT = """\
Work on the question step by step, and call tools where they help. When you know the answer, close with one line:
FINAL ANSWER: <the answer>
The answer is a number, or as few words as possible, or a list of these separated by commas.
- Number: digits only, without commas between them, and without a unit such as $ or % unless the question asks for one.
- Words: no article, no abbreviation, and digits written as digits, unless the question says otherwise.
- List: each element by these rules, in the order that the question asks for."""
"""The instruction of an agent. The official scorer forgives little of what it forbids."""

MARKER = re.compile(r"final\s+answer\s*[*_]*\s*:", re.IGNORECASE)
EMPHASIS = "*` \t"
BRACKETS = (("<", ">"), ("[", "]"))
"""What models put around an answer: emphasis, and the brackets of a template. Quotes may belong to the answer."""


def final_answer(text: str) -> str | None:
    """The answer behind the last "FINAL ANSWER:": the rest of its line, or else the next line with text.

    None where there is no marker, or nothing follows it.
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
        if answer.startswith(opening) and answer.find(closing) == len(answer) - 1:
            return answer[1:-1].strip(EMPHASIS)
    return answer
