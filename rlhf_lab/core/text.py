r"""Cleaning of outside text so that it can be encoded, stored and displayed.

A Python string may contain a lone surrogate, i.e. half of the pair that encodes one character in UTF-16. The JSON
escape "\ud83d", bytes decoded with `surrogateescape` and user code create them. UTF-8 cannot encode them, so
tokenizers, files, SQLite and HTML pages reject the entire string. Text is made well-formed where it enters the package,
and once more where the package writes a file or encodes tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

MAX_MARKS = 30
"""Maximum number of combining marks in a row, as in Unicode's stream-safe format (UAX #15). No word needs more."""


def well_formed(text: str) -> str:
    """Replace each lone surrogate by U+FFFD. Two adjacent halves of a pair become their character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_value(value: Any) -> Any:
    """Return a JSON value with all its strings well-formed, including keys."""
    return with_texts(value, well_formed)


def is_well_formed(value: Any) -> bool:
    """Return True if `well_formed_value` would not change a JSON value."""
    if isinstance(value, str):
        return well_formed(value) is value  # `well_formed` returns the same object if it changes nothing
    if isinstance(value, Mapping):
        return all(is_well_formed(key) and is_well_formed(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_well_formed, value))
    return True


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with a function applied to all its strings, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [with_texts(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def normalise(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Normalise Unicode in linear time; `unicodedata.normalize` needs quadratic time for runs of combining marks."""
    if not text.isascii():
        # Runs longer than the stream-safe limit carry no meaning, so their surplus marks are dropped.
        text = "".join(_with_few_marks(text))
    return unicodedata.normalize(form, text)


def _with_few_marks(text: str) -> Iterator[str]:
    """Yield the characters of a text, but only the first `MAX_MARKS` of each run of combining marks."""
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= MAX_MARKS:
            yield character
