"""Numbers as people write them: "1,234.5", "17 million", "twenty-one", "3/4", "1.2 × 10^6", "$40", "35 km"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SMALL = {word: value for value, word in enumerate(ONES)} | {word: 10 * i for i, word in enumerate(TENS, start=2)}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MAGNITUDES = SCALES | {"hundred": 100, "dozen": 12, "bn": 10**9}

UNITS = {
    "%": ("percent", "per cent"),
    "$": ("dollar", "dollars", "usd"),
    "€": ("euro", "euros", "eur"),
    "£": ("pound", "pounds", "gbp"),
    "km": ("kilometre", "kilometres", "kilometer", "kilometers"),
    "m": ("metre", "metres", "meter", "meters"),
    "cm": ("centimetre", "centimetres", "centimeter", "centimeters"),
    "mm": ("millimetre", "millimetres", "millimeter", "millimeters"),
    "km^2": ("square kilometre", "square kilometres", "square kilometer", "square kilometers", "km2", "sq km"),
    "m^2": ("square metre", "square metres", "square meter", "square meters", "m2", "sq m"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams", "gramme", "grammes"),
    "t": ("tonne", "tonnes"),
    "l": ("litre", "litres", "liter", "liters"),
    "h": ("hour", "hours", "hr", "hrs"),
    "min": ("minute", "minutes", "mins"),
    "s": ("second", "seconds", "sec", "secs"),
    "day": ("days",),
    "year": ("years", "yr", "yrs"),
    "°c": ("degrees celsius", "degree celsius", "celsius"),
}
UNIT_OF = {word: unit for unit, words in UNITS.items() for word in (unit, *words)}

GROUPED = r"\d{1,3}(?:[, ']\d{3})+(?!\d)(?:\.\d+)?"
DIGITS = rf"(?:{GROUPED}|\d+(?:\.\d*)?|\.\d+)"
POWER = r"(?:e(?P<exponent>[+-]?\d+)|\s*[x*]\s*10\s*\^\s*(?P<power>[+-]?\d+))?"
WRITTEN = re.compile(rf"(?P<number>{DIGITS})(?![\d]){POWER}(?:\s*/\s*(?P<below>\d+)(?!\d))?")
MIXED = re.compile(r"(?P<whole>\d+)\s+(?P<above>\d+)\s*/\s*(?P<below>\d+)(?!\d)")
SIGNED = re.compile(r"(?P<sign>-|\+|minus\s+)?\s*(?P<currency>[$€£])?\s*(?P<rest>.*)", re.DOTALL)
FREE_UNIT = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)?")
"""A unit that no table knows: one or two words."""
NO_UNITS = {"and", "or", "not", "to", "plus", "minus", "is", "than", "but", *SMALL, *MAGNITUDES}
"""Words behind a number that make it something else than one number with its unit."""
LONGEST = 200
"""Characters of a text that can be a number. Python refuses to read numbers of thousands of digits."""
MOST_ZEROS = 400
"""Largest power of ten: no answer is larger, and its exact value could fill the memory."""


class Quantity(NamedTuple):
    """A number and its unit.

    Attributes:
        unit: as `UNITS` writes it, or in words that no table knows; "" where there is none.
        known: whether there is no unit or the table knows it.
    """

    value: Fraction
    unit: str
    known: bool


def read_quantity(text: str) -> Quantity | None:
    """The one number that a text is, with its unit; None where it is something else. Expects lower case."""
    if len(text) > LONGEST:
        return None
    parts = SIGNED.fullmatch(text.strip())
    assert parts is not None, "every text matches"
    read = _read_digits(parts["rest"]) or _read_words(parts["rest"])
    if read is None:
        return None
    value, rest = read
    value, rest = _scaled(value, rest)
    unit = _unit(rest, parts["currency"] or "")
    if unit is None:
        return None
    sign = -1 if (parts["sign"] or "").startswith(("-", "minus")) else 1
    return Quantity(sign * value, unit, not unit or unit in UNITS)


def _read_digits(text: str) -> tuple[Fraction, str] | None:
    mixed = MIXED.match(text)
    if mixed and int(mixed["below"]):
        return int(mixed["whole"]) + Fraction(int(mixed["above"]), int(mixed["below"])), text[mixed.end() :]
    match = WRITTEN.match(text)
    if match is None:
        return None
    exponent = int(match["exponent"] or match["power"] or 0)
    if abs(exponent) > MOST_ZEROS:
        return None
    value = Fraction(re.sub(r"[, ']", "", match["number"]).rstrip(".")) * Fraction(10) ** exponent
    if match["below"]:
        if not int(match["below"]):
            return None
        value /= int(match["below"])
    return value, text[match.end() :]


def _read_words(text: str) -> tuple[Fraction, str] | None:
    """A number in words at the start of a text, and what follows it."""
    words = text.replace("-", " ").split()
    value, count = words_value(words)
    return (Fraction(value), " ".join(words[count:])) if count else None


def words_value(words: list[str]) -> tuple[int, int]:
    """The number that a list of words begins with, and how many of them it takes: 0 where it begins with none."""
    total = current = taken = 0
    for position, word in enumerate(words):
        if word in SMALL:
            current += SMALL[word]
        elif word == "hundred":
            current = max(current, 1) * 100
        elif word in SCALES:
            total += max(current, 1) * SCALES[word]
            current = 0
        elif word == "and" and taken and position + 1 < len(words) and words[position + 1] in SMALL:
            if words[position - 1] in SMALL:
                break  # "two and three" are two numbers; "two hundred and three" is one
            continue
        else:
            break
        taken = position + 1
    return total + current, taken


def _scaled(value: Fraction, rest: str) -> tuple[Fraction, str]:
    """A number with the magnitudes behind it: (17, " million people") → (17000000, "people")."""
    words = rest.split()
    while words and words[0] in MAGNITUDES:
        value *= MAGNITUDES[words.pop(0)]
    return value, " ".join(words)


def _unit(rest: str, currency: str) -> str | None:
    """The unit in what follows a number; None where that is no unit."""
    rest = rest.strip().rstrip(".")
    if not rest:
        return currency
    unit = UNIT_OF.get(rest)
    if unit is None:
        if not FREE_UNIT.fullmatch(rest) or NO_UNITS.intersection(rest.split()):
            return None
        unit = rest
    return unit if not currency or currency == unit else None
