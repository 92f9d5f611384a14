r"""Final answer that a response states, in any form: a number, a formula, a set, a word.

Sources in this order: the text after the first "####" on its line, as in GSM8K, unless a box follows, because the mark
is then a Markdown heading ("#### Step 1"); the last \boxed{…} with matching braces, as in MATH (arXiv:2103.03874); the
text after the last "the answer is". The lenient mode then uses the last number.
"""

from __future__ import annotations

import re

from rlhf_lab.environments.maths.answers import MARKED_TEXT, final_answer

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
BRACE = re.compile(r"(?<!\\)[{}]")
r"""A LaTeX brace; \{ and \} are characters of the answer."""
SAID = re.compile(r"\banswer\s*\**\s*(?:is\b|:|=)[\s:*]*(?:\\\[\s*)?(\S[^\n]*)", re.IGNORECASE)
r"""Text such as "the answer is 5". "Answer" may be in bold (**Answer**: 5), and 5 in displayed mathematics, \[ 5 \]."""
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
"""End of the text after "the answer is": the period in 3.5 does not match, the one at the end of "3.5. So" does."""


def stated_answer(text: str, *, lenient: bool = False) -> str | None:
    """Return the answer as written, without the mark around it; None if the response states none."""
    marked = MARKED_TEXT.search(text)
    if marked and last_boxed(text[marked.end() :]) is None:
        return _unwrapped(marked[1])
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip() or None
    stated = SAID.findall(text)
    if stated:
        return _unwrapped(SENTENCE_END.split(stated[-1])[0])
    return final_answer(text, lenient=True) if lenient else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{…} with matching braces; None if there is none."""
    # Match all braces with a stack: a box may contain braces and other boxes, so a regular expression is not enough.
    boxes = {box.end() - 1 for box in BOX.finditer(text)}
    last: tuple[int, int] | None = None
    open_braces: list[int] = []
    for brace in BRACE.finditer(text) if boxes else ():
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif open_braces:
            start = open_braces.pop()
            if start in boxes and (last is None or start > last[0]):
                last = start, brace.start()
    return None if last is None else text[last[0] + 1 : last[1]]


def _unwrapped(answer: str) -> str | None:
    """Remove a box, bold marks, the end of a display and a final period; return None if nothing remains."""
    boxed = last_boxed(answer)
    bare = answer if boxed is None else boxed
    bare = bare.strip().strip("*").removesuffix("\\]").strip()
    return bare.removesuffix(".").strip() or None
