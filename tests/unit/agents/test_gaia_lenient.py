"""The final answer in what an agent says; the lenient scorer: it forgives what its rules say, and no more."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.gaia.numerals import read_quantity, words_value
from rlhf_lab.packs.agents.gaia.official import official_score
from rlhf_lab.packs.agents.gaia.questions import ANSWER_FORMAT, final_answer

FORGIVEN = {
    # wrapping and typing
    "Slate": ("The answer is Slate.", "final answer = **Slate**", "“Slate”"),
    "3, 4": ("Answer: the final answer is 3, 4", "three, 4"),
    "Zoë": ("Zoe",),
    "Łódź": ("Lodz",),
    "well-known": ("well–known",),
    "cat's cradle": ("‘cat’s cradle’",),
    "straße": ("STRASSE",),
    "fish": ("ﬁsh",),
    # numbers
    "17": ("FINAL ANSWER: 17", "seventeen", "17.0 km."),
    "17000000": ("17 million",),
    "105": ("one hundred and five",),
    "-3": ("minus three",),
    "-5": ("−5",),
    "0.75": ("3/4",),
    "0.5": ("½",),
    "3.5": ("3½",),
    "2.25": ("2 1/4",),
    "1200000": ("1.2 × 10^6", "1.2×10⁶"),
    "0.03": ("3 × 10^-2",),
    "12000": ("12 000",),
    "1,234": ("1234",),
    "40": ("€40", "40 °C"),
    "24": ("two dozen",),
    "35": ("35 km", "35 light years"),
    "35 km": ("35", "35 kilometres"),
    "12 m²": ("12 square metres",),
    "17%": ("17 percent",),
    "$40": ("40 dollars",),
    # lists
    "a, b": ("b, a", "a and b", "a\nb"),
    "a, b, c": ("a, b, and c",),
    "a; b; c": ("c, b & a",),
    "1234, 5678": ("1,234, 5,678",),
    "cat, dog": ("the cat, a dog",),
    "Paris, France": ("Paris France",),
    # text
    "cat": ("The Cat",),
    "salt & pepper": ("salt and pepper",),
    "The Three Musketeers": ("3 Musketeers",),
    "Route 66": ("Route sixty-six",),
}
"""Gold: answers that only the lenient scorer accepts."""
NOT_FORGIVEN = {
    "17": ("17 or 18", "17 and 18", "not 17", "17 to 20", "17 million", "17.1"),
    "3.14159": ("3.14",),
    "17 km": ("17 apples",),
    "35 km": ("35 miles",),
    "€40": ("$40",),
    "5 km²": ("5 km",),
    "102": ("10²",),
    "3½": ("31/2",),
    "0.17": ("17%",),
    "St. Petersburg": ("Saint Petersburg",),
    "Slate": ("Slate or Tidal", "I think that it is Slate"),
    "a, b": ("a, a", "a, b, c"),
    "a, a": ("a, b",),
    "…": ("—",),
    "7 Wonders": ("7",),
    "a": ("The",),
    "cat": ("", None),
    "the": ("",),
    "0": ("1/0",),
    "9": ("9" * 5000,),
    "1": ("1e999999999",),
}
"""Gold: answers that are wrong."""


def test_what_is_forgiven_and_what_is_not() -> None:
    for table, expected in ((FORGIVEN, True), (NOT_FORGIVEN, False)):
        for gold, answers in table.items():
            for answer in answers:
                assert lenient_score(answer, gold) == expected, (answer, gold)
                assert not official_score(answer, gold), (answer, gold)


PIECES = ["17", "1,234", ".5", "-3", "$", "%", ",", "; ", " ", "the ", "Cat", "é", "inf", "nan", "e3", "!", " and "]
texts = st.one_of(st.text(max_size=8), st.lists(st.sampled_from(PIECES), max_size=5).map("".join))


@given(st.one_of(st.none(), texts), texts)
def test_officially_right_is_leniently_right(answer: str | None, gold: str) -> None:
    if official_score(answer, gold):
        assert lenient_score(answer, gold)


@given(
    st.from_regex(r"[b-z]{4,8}( [b-z]{4,8})?", fullmatch=True),
    st.sampled_from(["{}.", '"{}"', "The answer is {}", "**{}**"]),
)
def test_wrapping_changes_nothing(gold: str, wrapping: str) -> None:
    assert lenient_score(wrapping.format(gold), gold)
    assert not lenient_score(wrapping.format(gold + "q"), gold)


@given(st.integers(0, 999_999))
def test_numbers_in_words_are_read_back(number: int) -> None:
    assert words_value(in_words(number).split()) == (number, len(in_words(number).split()))
    assert lenient_score(in_words(number), str(number))


def in_words(number: int) -> str:
    """A number below a million in English words, written independently of the reader."""
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    small = [*ones.split(), "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    if number >= 1000:
        rest = f" {in_words(number % 1000)}" if number % 1000 else ""
        return f"{in_words(number // 1000)} thousand{rest}"
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{small[number // 100]} hundred{rest}"
    if number < 20:
        return small[number]
    rest = f" {small[number % 10]}" if number % 10 else ""
    return f"{tens[number // 10 - 2]}{rest}"


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1,234.5", Fraction(2469, 2), ""),
        ("1.5e3", 1500, ""),
        ("35 km", 35, "km"),
        ("35 kilometers", 35, "km"),
        ("three hundred thousand people", 300_000, "people"),
        ("$ 5", 5, "$"),
    ],
)
def test_quantities(text: str, value: Fraction, unit: str) -> None:
    quantity = read_quantity(text)
    assert quantity is not None and (quantity.value, quantity.unit) == (value, unit)


@pytest.mark.parametrize("text", ["", "km", "10:50", "3/4/2020", "1st", "5 and 6", "two and three", "1,23", "5 or"])
def test_what_is_no_quantity_with_a_known_unit(text: str) -> None:
    quantity = read_quantity(text)
    assert quantity is None or not quantity.known


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I add.\nFINAL ANSWER: 17", "17"),
        ("FINAL ANSWER: 17\nThat was all.", "17"),
        ("FINAL ANSWER: 1\nNo.\nFINAL ANSWER: 2", "2"),
        ("**FINAL ANSWER:** a, b", "a, b"),
        ("**FINAL ANSWER: 17**", "17"),
        ("**Final Answer**: 17", "17"),
        ("final answer :\n\n`17`\n", "17"),
        ("FINAL ANSWER: <17>", "17"),
        ("FINAL ANSWER: [a, b]", "a, b"),
        ("FINAL ANSWER: [1], [2]", "[1], [2]"),
        ('FINAL ANSWER: "Slate"', '"Slate"'),
        ("FINAL ANSWER: U.S.A.", "U.S.A."),
        ("FINAL ANSWER:", None),
        ("FINAL ANSWER: ** **\n", None),
        ("The answer is 17", None),
        ("", None),
    ],
)
def test_the_answer_is_found(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer
    assert final_answer(ANSWER_FORMAT) is not None  # the instruction names the marker
