"""Parser for numbers in a model's answer, with their units: "1,234.5", "−3", "1/2", "1.2 million", "forty-two".

Not supported: exponents, decimal commas ("3,5" is two numbers), Roman numerals, ordinals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

SEPARATORS = "\u00a0\u2009\u202f"
"""Narrow and fixed spaces, which separate thousands like a comma. An ordinary space separates two numbers."""
# sign, digits, decimals, denominator, scale and unit: "-$1,200.50", "3/4", "2.5 million km"
NUMBER = re.compile(
    rf"(?<![\w.])([-−]?)[$€£]?(\d{{1,3}}(?:[,{SEPARATORS}]\d{{3}})+(?!\d)|\d+)(\.\d+)?(?:/(\d+))?"
    r"\s*(thousand|million|billion)?\s*([%°]|[a-zA-Z]+)?"
)
MOST_DIGITS = 400
"""Maximum number of digits read from each part of a number. Python refuses to convert texts of thousands of digits."""
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
"""Unit → (its quantity, its size in the quantity's base unit)."""


@dataclass(frozen=True, slots=True)
class WordedQuantity:
    """A number and the following word in lower case, which is a unit, another word, or ""."""

    value: Fraction
    unit: str = ""


def quantities(text: str) -> list[WordedQuantity]:
    """Return the numbers of a text in order. Number words count only in a text without digits."""
    if re.search(r"\d", text):
        return [_read(match) for match in NUMBER.finditer(text)]
    return _spelt_out(text)


def _read(match: re.Match[str]) -> WordedQuantity:
    sign, full, decimals, denominator, magnitude, unit = match.groups()
    digits = re.sub(rf"[,{SEPARATORS}]", "", full)
    # The limit of the decimals has one more character for the decimal point.
    value = Fraction(_first_digits(digits) + (decimals or "")[: MOST_DIGITS + 1])
    divisor = int(_first_digits(denominator or "0"))
    # A denominator of 0 is ignored.
    if divisor:
        value /= divisor
    value *= MAGNITUDES[magnitude] if magnitude else 1
    return WordedQuantity(-value if sign else value, (unit or "").lower())


def _first_digits(digits: str) -> str:
    """Return the first `MOST_DIGITS` digits of an integer, without leading zeros."""
    return digits.lstrip("0")[:MOST_DIGITS] or "0"


def _spelt_out(text: str) -> list[WordedQuantity]:
    """Read numbers that are written as words: "three hundred and five" is 305. Any other word ends a number.

    So does a word that cannot continue it: "two and three" and "ten twenty" are two numbers each.
    """
    found: list[WordedQuantity] = []
    total = group = 0
    inside = False
    before = ""  # the previous word, except "and"
    # The empty word at the end finishes a number that the text ends with.
    for word in [*re.findall(r"[a-z]+|%", text.lower()), ""]:
        is_part = word in WORDS and (before in MAGNITUDES or (before.endswith("ty") and WORDS[word] < 10))
        if inside and word != "and" and not is_part and word not in MAGNITUDES:
            found.append(WordedQuantity(Fraction(total + group), "" if word in WORDS else word))
            total = group = 0
            inside = False
        if word in WORDS:
            group, inside = group + WORDS[word], True
        elif inside and word == "hundred":
            group *= 100
        elif inside and word in MAGNITUDES:
            total, group = total + group * MAGNITUDES[word], 0
        before = before if word == "and" else word
    return found


def in_unit(quantity: WordedQuantity, unit: str) -> Fraction | None:
    """Return the number converted to `unit`; None if the number's unit measures another quantity.

    A word that is not a known unit is ignored: "41 villages" is 41. A number without a unit is taken to be in `unit`.
    """
    expected, stated = UNITS.get(unit.lower()), UNITS.get(quantity.unit)
    if expected is None or stated is None:
        return quantity.value
    if expected[0] != stated[0]:
        return None
    return quantity.value * stated[1] / expected[1]
