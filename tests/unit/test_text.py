"""Text from outside becomes text that can be encoded (`core/text.py`); hostile texts in tests/unit/agents."""

from __future__ import annotations

import pytest

from rlhf_lab.core.text import is_well_formed, normalise, well_formed, well_formed_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ä \U0001f600", "plain ä \U0001f600"),
        ("\ud83d", "\ufffd"),
        ("a\udc00b\ud83d", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),  # two halves next to each other are one character
    ],
)
def test_lone_surrogates_become_the_replacement_character(text, expected):
    assert well_formed(text) == expected
    assert is_well_formed(text) == (text == expected)


def test_values_are_changed_with_their_keys():
    value = {"a\ud83d": ["\ud83d", 1, None, ("b", {"c": "\udc00"})]}
    assert not is_well_formed(value)
    assert well_formed_value(value) == {"a\ufffd": ["\ufffd", 1, None, ("b", {"c": "\ufffd"})]}
    assert is_well_formed(well_formed_value(value))


def test_normal_forms_keep_at_most_thirty_marks_in_a_row():
    assert normalise("NFC", "e\u0301") == "\u00e9"
    assert normalise("NFD", "a" + "\u0301" * 40 + "b") == "a" + "\u0301" * 30 + "b"
