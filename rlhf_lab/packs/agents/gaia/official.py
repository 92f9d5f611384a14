"""Official GAIA scorer: the rules of the leaderboard, including their oddities.

The kind of comparison depends only on the gold answer:

- a number (any text that Python's `float` accepts): `$`, `%` and `,` are removed from the answer, and the floats have
  to be equal. An answer that is not a number counts as infinity. Any text is therefore right if gold is "inf", and no
  answer is right if gold is "nan".
- a list (gold has a comma or a semicolon): both texts are split at these and compared element by element, in order.
  Elements of gold that are numbers are compared as above. Other elements are compared without whitespace and case, but
  with punctuation.
- other text: compared without whitespace, ASCII punctuation and case, but with articles.

A missing answer (None) is the text "None". The leaderboard also prints warnings for answers that are not numbers and
for lists of another length; here they are just wrong.
"""

from __future__ import annotations

import re
import string

DROPPED_FROM_NUMBERS = str.maketrans("", "", "$%,")
PUNCTUATION = str.maketrans("", "", string.punctuation)
LIST_SEPARATOR = re.compile(r"[,;]")
WHITESPACE = re.compile(r"\s")


def official_score(answer: str | None, gold: str) -> bool:
    # The leaderboard converts a missing answer to this text.
    answer = "None" if answer is None else answer
    if _is_number(gold):
        return _same_number(answer, gold)
    if LIST_SEPARATOR.search(gold):
        return _same_list(LIST_SEPARATOR.split(answer), LIST_SEPARATOR.split(gold))
    return _to_plain(answer).translate(PUNCTUATION) == _to_plain(gold).translate(PUNCTUATION)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _same_number(answer: str, gold: str) -> bool:
    digits = answer.translate(DROPPED_FROM_NUMBERS)
    # Infinity differs from every finite gold number, so the answer is wrong.
    value = float(digits) if _is_number(digits) else float("inf")
    return value == float(gold)


def _same_list(answers: list[str], golds: list[str]) -> bool:
    if len(answers) != len(golds):
        return False
    return all(_same_element(answer, gold) for answer, gold in zip(answers, golds, strict=True))


def _same_element(answer: str, gold: str) -> bool:
    if _is_number(gold):
        return _same_number(answer, gold)
    return _to_plain(answer) == _to_plain(gold)


def _to_plain(text: str) -> str:
    """Remove whitespace and convert to lower case."""
    return WHITESPACE.sub("", text).lower()
