"""GAIA's official scorer: the rules of the leaderboard, with what is odd about them.

What is compared depends on the gold answer alone:

- a number (whatever Python's `float` reads): `$`, `%` and `,` leave the answer, then the floats must be equal. An
  answer that is no number counts as infinity, so any text is right where gold is "inf"; nothing is where it is "nan".
- a list (it has a comma or a semicolon): both are split there and compared element by element, in order. An element
  of gold that is a number is compared as above; others without whitespace and case, with their punctuation.
- other text: compared without whitespace, ASCII punctuation and case. Articles stay.

No answer (None) is the text "None". The leaderboard also warns about answers that are no number and lists of another
length; here these are only wrong.
"""

from __future__ import annotations

import re
import string

DROPPED_FROM_NUMBERS = str.maketrans("", "", "$%,")
PUNCTUATION = str.maketrans("", "", string.punctuation)
LIST_SEPARATOR = re.compile(r"[,;]")
WHITESPACE = re.compile(r"\s")


def official_score(answer: str | None, gold: str) -> bool:
    """Whether the answer is right."""
    answer = "None" if answer is None else answer
    if _is_number(gold):
        return _same_number(answer, gold)
    if LIST_SEPARATOR.search(gold):
        return _same_list(LIST_SEPARATOR.split(answer), LIST_SEPARATOR.split(gold))
    return _plain(answer).translate(PUNCTUATION) == _plain(gold).translate(PUNCTUATION)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _same_number(answer: str, gold: str) -> bool:
    digits = answer.translate(DROPPED_FROM_NUMBERS)
    value = float(digits) if _is_number(digits) else float("inf")
    return value == float(gold)


def _same_list(answers: list[str], golds: list[str]) -> bool:
    if len(answers) != len(golds):
        return False
    return all(_same_element(answer, gold) for answer, gold in zip(answers, golds, strict=True))


def _same_element(answer: str, gold: str) -> bool:
    if _is_number(gold):
        return _same_number(answer, gold)
    return _plain(answer) == _plain(gold)


def _plain(text: str) -> str:
    """Without whitespace and in lower case."""
    return WHITESPACE.sub("", text).lower()
