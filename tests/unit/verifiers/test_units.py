"""Units of final answers: which are the same, which are not, and what a lacking unit means."""

from __future__ import annotations

import pytest

from rlhf_lab.rewards.verifiers.equivalence import as_ballot, exactly_same
from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.rewards.verifiers.units import split_unit

SAME = [
    ("3", "3 times"),
    # one unit, written in several ways
    ("5 km", "5 kilometres"),
    (r"5\,\text{km}", "5 km"),
    ("1,000 km", "1 000 km"),
    ("5 p.m.", "5 PM"),
    ("$18", "18 dollars"),
    ("$-5", "-$5"),
    ("$5 million", "5,000,000 dollars"),
    ("$18 per day", "18 dollars a day"),
    ("60 miles per hour", "60 mph"),
    ("5 square meters", r"5\text{ m}^2"),
    ("5 m²", "5 m^2"),
    (r"5\text{ m/s}", r"5\ \frac{\text{m}}{\text{s}}"),
    ("5 sq. ft.", "5 square feet"),
    (r"90^\circ", "90 degrees"),
    (r"20^\circ\text{C}", "20 degrees Celsius"),
    ("3 boxes", "3 box"),
    ("3 glasses", "3 glass"),  # not "glasse", nor "glas"
    ("3 buses", "3 bus"),
    ("3 tomatoes", "3 tomato"),
    ("3 berries", "3 berry"),
    ("3 matches", "3 match"),
    ("10 Apples", "10 apples"),
    ("10%", "10 percent"),
    ("72 km/h", "72 kilometres per hour"),
    ("3 hours 15 minutes", "3 hours 15 minutes"),
    (r"\frac{1}{2}\text{ km}", "0.5 km"),
    (r"$\frac12$ km", "1/2 kilometres"),
    ("1 1/2 cups", "1.5 cups"),
    # a unit that one of the two lacks
    ("18", "18 dollars"),
    ("18", "$18"),
    ("18", "18 eggs left"),
    ("18", "18 dollars every day at the market"),
    ("5000000", "5 million"),
    ("5 km", "5"),
    ("0.5", r"\frac{1}{2}\text{ hour}"),
    # mixed numbers
    ("1 1/2", "3/2"),
    ("-1 1/2", "-3/2"),
    (r"1\frac{1}{2}", "1.5"),
]
OTHER = [
    ("5 km", "5 m"),
    ("3 hours", "3 days"),
    ("5 a.m.", "5 p.m."),
    (r"5\,\text{km}", "5 m"),
    ("5 km", "5000 km"),
    ("-5 km", "5 km"),
    ("5 m", "5 m^2"),
    ("5 m/s", "5 m"),
    ("18 per day", "18 per week"),
    ("5 mW", "5 MW"),
    ("5 mg", "5 Mg"),
    ("10 km", "10 %"),
    ("$5", "5 euros"),
    ("$5", "5 cents"),
    ("5 apples", "5 pears"),
    ("12 noon", "12 midnight"),
    ("20 degrees Celsius", "20 degrees Fahrenheit"),
    ("1 month", "30 days"),
    ("5 feet 3 inches", "5 feet 4 inches"),
    ("2 hours", "2 hours 30 minutes"),
    ("2 hours 30 dollars", "30 dollars"),
    ("2 hours 30 minutes", "30 minutes"),
    ("0 hours 15 minutes", "0"),
    # nothing is converted
    ("5 km", "5000 m"),
    ("3 hours", "180 minutes"),
    ("3 hours 15 minutes", "195 minutes"),
    ("$18", "1800 cents"),
    ("1 cubic meter", "1000 liters"),
    ("5 m 3 kg", "3005"),
    ("5 W/m", "5 W m"),
    ("3 glasses", "3 gases"),
    ("5 planes", "5 plans"),
    # words that change the number
    ("3", "3 quarters"),
    ("3", "3 times five"),
    ("5", "5 million"),
    ("5", "5 squared"),
    ("5", "5 and a half"),
    ("5", r"5\text{ and a half}"),
    (r"3\text{ quarters}", "3"),
    ("3", "3 or"),
    # mixed numbers
    ("1 1/2", "11/2"),
    ("1 1/2", "1/2"),
    ("1 3/2", "5/2"),
    # words are no products of letters
    ("act", "cat"),
    ("no", "on"),
    (r"\text{act}", r"\text{cat}"),
    ("act", "c a t"),
]
BY_THE_LIBRARY = [
    (r"10\pi\text{ cm}^2", r"10\pi cm^2", True),
    (r"64\pi cubic inches", r"64\pi", True),
    (r"10\pi\text{ cm}^2", r"10\pi cm", False),
    (r"10\pi cm", r"10\pi m", False),
    (r"2\sqrt{3} m", r"\sqrt{12}", True),
    ("2(x+1)", "2x + 2 cm", True),
    ("i^2", "-1", True),
    ("i^2", "1", False),
    ("i", "1", False),
    (r"\emptyset", r"\varnothing", True),
    ("∅", r"\{\}", True),
    (r"\varnothing", "0", False),
    ("(act, ox)", "(cat, xo)", False),
    ("A, B", "B, A", True),
    (r"\frac{ab}{c}", r"\frac{ba}{c}", True),
    ("3xy", "3yx", True),
    ("3ab", "3", False),
    ("3cm", "3x", False),
    ("5 x", "5", False),
]


@pytest.mark.parametrize(("gold", "stated"), SAME)
def test_the_same_quantity_needs_no_library(gold, stated):
    exact = MathVerifier(Math(equivalence="exact"))
    assert exact.equal(gold, stated) is True
    assert exact.equal(stated, gold) is True
    assert exact.verdict({"answer": gold}, "p", f"#### {stated}").score == 1


@pytest.mark.parametrize(("gold", "stated"), OTHER)
def test_other_quantities(gold, stated):
    assert exactly_same(gold, stated) is not True
    assert exactly_same(stated, gold) is not True


@pytest.mark.parametrize(("gold", "stated"), OTHER)
def test_nor_does_the_library_take_them_for_equal(verifier, gold, stated):
    assert not verifier.equal(gold, stated)
    assert not verifier.equal(stated, gold)
    assert verifier.verdict({"answer": gold}, "p", f"#### {stated}").score == 0


@pytest.mark.parametrize(("gold", "stated", "same"), BY_THE_LIBRARY)
def test_units_around_formulas(verifier, gold, stated, same):
    assert verifier.equal(gold, stated) is same
    assert verifier.equal(stated, gold) is same


def test_an_answer_is_a_number_and_the_words_of_its_unit():
    assert split_unit("72 km/h") == split_unit("72 kilometers per hour") == ("72", ("kilometre", "/", "hour"))
    assert split_unit("5 million dollars") == ("5000000", ("dollar",))
    assert split_unit(r"5\text{ cm}^2") == split_unit("5 square centimetres") == ("5", ("centimetre", "^2"))
    assert split_unit("10%") == ("10%", ())
    assert split_unit("2 hours 30 minutes") is split_unit("3 quarters") is None


@pytest.mark.parametrize(
    "formula", ["2x", "5 x", "5 x/(a b)", "2 sin x", "x+1", "(1, 2)", r"\text{Monday}", "Monday", "2 y z", "5!", ""]
)
def test_a_formula_has_no_unit(formula):
    assert split_unit(formula) == (formula, ())


def test_an_answer_counts_in_a_vote_by_its_value():
    assert {as_ballot(answer) for answer in ("18", "$18", "18 dollars", "18.0 dollars.")} == {"18"}
    assert as_ballot("5 million") == "5000000"
    assert as_ballot("3 quarters") == "3quarters"
