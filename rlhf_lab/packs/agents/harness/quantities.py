"""Numbers in what a model answers: "1,234.5", "−3", "1/2", "1.2 million", "forty-two", with the unit behind them.

Left out: exponents, commas as decimal points ("3,5" is two numbers), Roman numerals, ordinals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

SEPARATORS = "\u00a0\u2009\u202f"
"""Narrow and fixed spaces, which stand between thousands like a comma. An ordinary space divides numbers."""
NUMBER = re.compile(
    rf"(?<![\w.])([-−]?)[$€£]?(\d{{1,3}}(?:[,{SEPARATORS}]\d{{3}})+(?!\d)|\d+)(\.\d+)?(?:/(\d+))?"
    r"\s*(thousand|million|billion)?\s*([%°]|[a-zA-Z]+)?",
)
MOST_DIGITS = 400
"""Read of each part of a number: Python converts no text of thousands of digits, and no answer has so many."""
MAGNITUDES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
WORDS = {word: value for value, word in enumerate(_SMALL.split())}
WORDS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}

_UNITS = {
    "length": {"mm millimetre millimeter": "1/1000", "cm centimetre centimeter": "1/100", "m metre meter": "1"}
    | {"km kilometre kilometer": "1000"},
    "mass": {"mg milligram": "1/1000000", "g gram": "1/1000", "kg kilo kilogram": "1", "t ton tonne": "1000"},
    "time": {"s sec second": "1", "min minute": "60", "h hour": "3600", "day": "86400", "week": "604800"},
    "volume": {"ml millilitre milliliter": "1/1000", "l litre liter": "1"},
    "share": {"% percent": "1"},
}
UNITS = {
    name + plural: (quantity, Fraction(factor))
    for quantity, units in _UNITS.items()
    for names, factor in units.items()
    for name in names.split()
    for plural in ("", "s")
}
"""Unit → its quantity, and how many of the quantity's base unit it is."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and the word behind it, in small letters: a unit, some other word, or ""."""

    value: Fraction
    unit: str = ""


def quantities(text: str) -> list[Quantity]:
    """The numbers of a text in order; number words count where it has no digits."""
    if re.search(r"\d", text):
        return [_read(match) for match in NUMBER.finditer(text)]
    return _spelt_out(text)


def _read(match: re.Match[str]) -> Quantity:
    sign, whole, decimals, denominator, magnitude, unit = match.groups()
    digits = re.sub(rf"[,{SEPARATORS}]", "", whole)
    value = Fraction(_first_digits(digits) + (decimals or "")[: MOST_DIGITS + 1])
    divisor = int(_first_digits(denominator or "0"))
    if divisor:
        value /= divisor
    value *= MAGNITUDES[magnitude] if magnitude else 1
    return Quantity(-value if sign else value, (unit or "").lower())


def _first_digits(digits: str) -> str:
    """A whole number without leading zeros; of one that is too long, its first digits."""
    return digits.lstrip("0")[:MOST_DIGITS] or "0"


def _spelt_out(text: str) -> list[Quantity]:
    """Numbers as words: "three hundred and five" is 305. A word that is none ends a number."""
    found: list[Quantity] = []
    total = group = 0
    inside = False
    for word in [*re.findall(r"[a-z]+|%", text.lower()), ""]:
        if word in WORDS:
            group, inside = group + WORDS[word], True
        elif inside and word == "hundred":
            group *= 100
        elif inside and word in MAGNITUDES:
            total, group = total + group * MAGNITUDES[word], 0
        elif inside and word != "and":
            found.append(Quantity(Fraction(total + group), word))
            total = group = 0
            inside = False
    return found


def in_unit(quantity: Quantity, unit: str) -> Fraction | None:
    """The value in a unit; None where its own unit is one of another quantity.

    A word that is no known unit is no unit: "41 villages" is 41. So is a number whose unit goes without saying.
    """
    wanted, stated = UNITS.get(unit.lower()), UNITS.get(quantity.unit)
    if wanted is None or stated is None:
        return quantity.value
    if wanted[0] != stated[0]:
        return None
    return quantity.value * stated[1] / wanted[1]
