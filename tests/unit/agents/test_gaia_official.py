"""The official scorer against a table written out by hand from its rules."""

from __future__ import annotations

import pytest

from rlhf_lab.packs.agents.gaia.official import official_score

TABLE: dict[str, tuple[tuple[str | None, ...], tuple[str | None, ...]]] = {
    # numbers
    "17": (("17", "17.0", " 17 ", "$17", "17%", "17."), ("€17", "17 km", "17.000001", "seventeen")),
    "1700": (("1,700", "1.7e3", "1_700"), ("1 700",)),
    "1700.5": (("$1,700.50",), ()),
    "0.3": ((), ("0.30000000000000004",)),
    "-5": (("-5",), ("−5",)),
    "5": (("+5",), ()),
    "17000000": ((), ("17 million",)),
    "0": ((), ("", None)),
    "0.5": ((), ("1/2",)),
    "3": (("٣",), ()),
    "1_7": (("17",), ()),
    " 17\n": (("17",), ()),
    # what no number can be right about
    "inf": (("abc", "", None, "1e999"), ("5",)),
    "Infinity": (("inf",), ()),
    "-inf": ((), ("abc",)),
    "nan": ((), ("nan", "abc")),
    # lists
    "1,234": (("1,234", "1, 234", "1;234"), ("1234",)),
    "a,b": (("a, b",), ()),
    "a, b": (("a; b", "A, B"), ("b, a", "a, b, c", "a", "a and b", "a!, b", "a,, b")),
    "seagull, tern": (("sea gull, tern",), ()),
    "ab, c": ((), ("a-b, c",)),
    "cat, dog": ((), ("the cat, dog",)),
    "3, 4": (("$3, 4%", "3.0, 4"), ("three, 4",)),
    "inf, 4": (("x, 4",), ()),
    "1000; 2000": ((), ("1,000; 2,000",)),
    "a,": (("a,",), ("a",)),
    ";": ((",",), ()),
    "None, b": ((), (None,)),
    "Paris, France": ((), ("Paris France",)),
    # texts
    "cat": (("c a t", "c\xa0a\tt", "cat."), ("The Cat", "“cat”", "FINAL ANSWER: cat", "cat (animal)", None)),
    "Cat": (("cat",), ()),
    '"cat"': (("cat!?",), ()),
    "cat dog": (("cat, dog",), ()),
    "St Petersburg": (("St. Petersburg",), ()),
    "St. Petersburg": ((), ("Saint Petersburg",)),
    "Zoë": ((), ("Zoe",)),
    "zoë": (("ZOË",), ()),
    "well-known": (("wellknown",), ("well–known",)),
    "salt pepper": (("salt & pepper",), ()),
    "salt & pepper": ((), ("salt and pepper",)),
    "17 km": ((), ("17",)),
    "!": (("$",), ()),
    "": (("", "!"), ()),
    "None": ((None,), ()),
    "none.": ((None,), ()),
    "none": (("None",), ()),
    "straße": ((), ("STRASSE",)),
}
"""Gold: the right answers, and the wrong ones."""


@pytest.mark.parametrize("gold", TABLE)
def test_the_table(gold: str) -> None:
    right, wrong = TABLE[gold]
    assert [answer for answer in (*right, *wrong) if official_score(answer, gold)] == list(right)
