"""The official scorer against a table written out by hand from its rules."""

from __future__ import annotations

import pytest

from rlhf_lab.packs.agents.gaia.official import official_score

NUMBERS = [
    ("17", "17", True),
    ("17.0", "17", True),
    (" 17 ", "17", True),
    ("$17", "17", True),
    ("17%", "17", True),
    ("1,700", "1700", True),
    ("$1,700.50", "1700.5", True),
    ("1.7e3", "1700", True),
    ("1_700", "1700", True),
    ("1 700", "1700", False),
    ("€17", "17", False),
    ("17 km", "17", False),
    ("17.", "17", True),
    ("17.000001", "17", False),
    ("0.30000000000000004", "0.3", False),
    ("-5", "-5", True),
    ("−5", "-5", False),
    ("+5", "5", True),
    ("seventeen", "17", False),
    ("17 million", "17000000", False),
    ("", "0", False),
    ("1/2", "0.5", False),
    ("٣", "3", True),
    ("17", "1_7", True),
    ("17", " 17\n", True),
    (None, "0", False),
]
UNREADABLE = [
    ("abc", "inf", True),
    ("", "inf", True),
    (None, "inf", True),
    ("5", "inf", False),
    ("inf", "Infinity", True),
    ("abc", "-inf", False),
    ("nan", "nan", False),
    ("abc", "nan", False),
    ("1e999", "inf", True),
]
LISTS = [
    ("1234", "1,234", False),
    ("1,234", "1,234", True),
    ("1, 234", "1,234", True),
    ("1;234", "1,234", True),
    ("a, b", "a,b", True),
    ("a; b", "a, b", True),
    ("b, a", "a, b", False),
    ("a, b, c", "a, b", False),
    ("a", "a, b", False),
    ("a and b", "a, b", False),
    ("A, B", "a, b", True),
    ("sea gull, tern", "seagull, tern", True),
    ("a!, b", "a, b", False),
    ("a-b, c", "ab, c", False),
    ("the cat, dog", "cat, dog", False),
    ("$3, 4%", "3, 4", True),
    ("3.0, 4", "3, 4", True),
    ("x, 4", "inf, 4", True),
    ("three, 4", "3, 4", False),
    ("1,000; 2,000", "1000; 2000", False),
    ("a,", "a,", True),
    ("a", "a,", False),
    (",", ";", True),
    ("a,, b", "a, b", False),
    (None, "None, b", False),
    ("Paris France", "Paris, France", False),
]
TEXTS = [
    ("The Cat", "cat", False),
    ("cat", "Cat", True),
    ("c a t", "cat", True),
    ("c\u00a0a\tt", "cat", True),
    ("cat.", "cat", True),
    ("cat!?", '"cat"', True),
    ("cat, dog", "cat dog", True),
    ("St. Petersburg", "St Petersburg", True),
    ("Saint Petersburg", "St. Petersburg", False),
    ("Zoe", "Zoë", False),
    ("ZOË", "zoë", True),
    ("well–known", "well-known", False),
    ("wellknown", "well-known", True),
    ("“cat”", "cat", False),
    ("FINAL ANSWER: cat", "cat", False),
    ("cat (animal)", "cat", False),
    ("salt & pepper", "salt pepper", True),
    ("salt and pepper", "salt & pepper", False),
    ("17", "17 km", False),
    ("$", "!", True),
    ("", "", True),
    ("!", "", True),
    (None, "None", True),
    (None, "none.", True),
    (None, "cat", False),
    ("None", "none", True),
    ("STRASSE", "straße", False),
]


@pytest.mark.parametrize(("answer", "gold", "right"), NUMBERS + UNREADABLE + LISTS + TEXTS)
def test_the_table(answer: str | None, gold: str, right: bool) -> None:
    assert official_score(answer, gold) is right
