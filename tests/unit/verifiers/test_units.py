"""Units of final answers: which quantities are the same, which are not, and what a lacking unit means."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlhf_lab.rewards.verifiers.equivalence import as_ballot, exactly_same
from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.rewards.verifiers.units import ParsedQuantity, PhysicalUnit, read_quantity

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
    # everything behind a division sign is below it: W/m K is W/(m·K)
    ("5 W/m K", "5 W/m/K"),
    ("5 W/m K", "5 W/(m K)"),
    ("5 W/m K", r"5\text{ W/(m K)}"),
    ("5 W/m K", "5 W m^-1 K^-1"),
    ("5 J/kg K", "0.005 J/g K"),  # a kilogram below is 1000 grams
    ("10 Apples", "10 apples"),
    ("10%", "10 percent"),
    # conversions: 1 h = 60 min, 72 km/h = 72,000 m / 3,600 s, 1 mile = 5,280 feet, 1 m = 100 cm, 1 m³ = 1,000 l
    ("5 km", "5000 m"),
    ("3 hours", "180 minutes"),
    ("3 hours 15 minutes", "195 minutes"),
    ("3 hours and 15 minutes", "3.25 hours"),
    ("18 dollars and 50 cents", "$18.50"),
    ("$18", "1800 cents"),
    ("72 km/h", "20 m/s"),
    ("1 mile", "5280 feet"),
    ("1 cubic meter", "1000 liters"),
    ("1 m^2", "10000 cm^2"),
    ("1 hectare", "10000 square metres"),
    ("2 years", "24 months"),
    ("2 gallons", "32 cups"),
    ("18 apples per day", "126 apples per week"),
    (r"\frac{1}{2}\text{ km}", "500 m"),
    (r"$\frac12$ km", "500 m"),
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
    # 2 × 3600 + 30 is no number of seconds, nor of dollars
    ("2 hours 30 dollars", "7230 seconds"),
    ("2 hours 30 dollars", "7230 dollars"),
    ("2 hours 30 dollars", "30 dollars"),
    ("5 m 3 kg", "3005"),
    ("5 W/m K", "5 W K/m"),
    ("5 W/m K", "5 W/m"),
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
    (r"10\pi\text{ m}", r"1000\pi\text{ cm}", True),
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


def test_a_quantity_is_a_number_and_a_product_of_base_units():
    """72 km/h: 72, in metres per second 1000/3600 each."""
    speed = (("metre", 1), ("second", -1))
    assert read_quantity("72 km/h") == ParsedQuantity("72", PhysicalUnit(speed, Fraction(1000, 3600)))
    assert read_quantity("72 kilometers per hour") == read_quantity("72 km/h")
    assert read_quantity("5 million dollars") == ParsedQuantity("5", PhysicalUnit((("dollar", 1),)), scale=10**6)
    # 2 × 3600 + 30 × 60
    assert read_quantity("2 hours 30 minutes") == ParsedQuantity("9000", PhysicalUnit((("second", 1),)))
    assert read_quantity("10%") == ParsedQuantity("10%")
    conductivity = (("K", -1), ("W", 1), ("metre", -1))
    assert read_quantity("5 W/m K") == ParsedQuantity("5", PhysicalUnit(conductivity))
    assert read_quantity("5 W/(m² K)") == ParsedQuantity("5", PhysicalUnit((("K", -1), ("W", 1), ("metre", -2))))


@pytest.mark.parametrize(
    "formula", ["2x", "5 x", "5 x/(a b)", "2 sin x", "x+1", "(1, 2)", r"\text{Monday}", "Monday", "2 y z", "5!", ""]
)
def test_a_formula_has_no_unit(formula):
    assert read_quantity(formula) == ParsedQuantity(formula)


def test_an_answer_counts_in_a_vote_by_its_value():
    assert {as_ballot(answer) for answer in ("18", "$18", "18 dollars", "18.0 dollars.")} == {"18"}
    assert as_ballot("5 million") == "5000000"
    assert as_ballot("3 quarters") == "3quarters"
