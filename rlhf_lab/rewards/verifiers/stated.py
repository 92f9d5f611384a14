r"""The final answer that a reply states, in any form: a number, a formula, a set, a word.

In this order: what follows the first "####" on its line, as GSM8K marks answers; the last \boxed{…} with matching
braces, as MATH does (arXiv:2103.03874); what follows the last "the answer is". Leniently also the last number.
"""

from __future__ import annotations

import re

from rlhf_lab.environments.maths.answers import final_answer

MARKED = re.compile(r"####[ \t]*(\S[^\n]*)")
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
SAID = re.compile(r"\banswer\s*(?:is|:|=)\s*:?[ \t]*(\S[^\n]*)", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
"""Ends what follows "the answer is": 3.5 has a period within, "3.5. So" one behind."""


def stated_answer(text: str, *, lenient: bool = False) -> str | None:
    """The answer as it is written, without the mark around it; None where the reply states none."""
    marked = MARKED.search(text)
    if marked:
        return _unwrapped(marked[1])
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    said = SAID.findall(text)
    if said:
        return _unwrapped(SENTENCE_END.split(said[-1])[0])
    return final_answer(text, lenient=True) if lenient else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…} whose braces match; None where there is none."""
    for box in reversed(list(BOX.finditer(text))):
        depth = 1
        for position in range(box.end(), len(text)):
            # \{ and \} are characters of the answer
            if text[position] in "{}" and text[position - 1] != "\\":
                depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[box.end() : position]
    return None


def _unwrapped(answer: str) -> str | None:
    """An answer without a box, bold type or a period around it; None where nothing is left."""
    boxed = last_boxed(answer)
    bare = answer if boxed is None else boxed
    bare = bare.strip().strip("*").strip()
    return bare.removesuffix(".").strip() or None
