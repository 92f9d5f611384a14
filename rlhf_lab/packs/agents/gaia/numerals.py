"""Parser for written numbers: "1,234.5", "17 million", "twenty-one", "3/4", "1.2 × 10^6", "$40", "35 km"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from rlhf_lab.packs.agents.harness.quantities import WORDS

SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MAGNITUDES = SCALES | {"hundred": 100, "dozen": 12, "bn": 10**9}  # words after a number that multiply it

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

GROUPED = r"\d{1,3}(?:[, ']\d{3})+(?!\d)(?:\.\d+)?"  # 1,234,567.8; also with spaces or apostrophes between the groups
DIGITS = rf"(?:{GROUPED}|\d+(?:\.\d*)?|\.\d+)"
POWER = r"(?:e(?P<exponent>[+-]?\d+)|\s*[x*]\s*10\s*\^\s*(?P<power>[+-]?\d+))?"  # 1.5e6, 1.5 x 10^6
# a number or a fraction: 3/4
WRITTEN = re.compile(rf"(?P<number>{DIGITS})(?![\d]){POWER}(?:\s*/\s*(?P<below>\d+)(?!\d))?")
MIXED = re.compile(r"(?P<whole>\d+)\s+(?P<above>\d+)\s*/\s*(?P<below>\d+)(?!\d)")  # 2 1/2
SIGNED = re.compile(r"(?P<sign>-|\+|minus\s+)?\s*(?P<currency>[$€£])?\s*(?P<rest>.*)", re.DOTALL)
FREE_UNIT = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)?")
"""Unit that is not in the table: one or two words."""
NO_UNITS = {"and", "or", "not", "to", "plus", "minus", "is", "than", "but", *WORDS, *MAGNITUDES}
"""Words that cannot be a unit: a text with one of them after a number is not just a number."""
LONGEST = 200
"""Maximum number of characters of a number. Python refuses to read integers of thousands of digits."""
MOST_ZEROS = 400
"""Maximum absolute exponent of ten. Exact fractions with larger exponents could fill the memory."""


class NumeralQuantity(NamedTuple):
    """A number and its unit.

    Attributes:
        value: the number.
        unit: the unit as in `UNITS`, or the words of a unit that is not in the table; "" if there is none.
        known: True if there is no unit or the unit is in the table.
    """

    value: Fraction
    unit: str
    known: bool


def read_quantity(text: str) -> NumeralQuantity | None:
    """Read a lower-case text as one number with an optional unit. Return None if it is anything else."""
    if len(text) > LONGEST:
        return None
    parts = SIGNED.fullmatch(text.strip())
    assert parts is not None, "every text matches"
    # Digits first: "7 million" starts with digits, and its magnitude is read afterwards.
    rest = parts["rest"]
    read = _read_digits(rest) or _read_words(rest)
    if read is None:
        return None
    value, rest = read
    value, rest = _scaled(value, rest)
    unit = _unit(rest, parts["currency"] or "")
    if unit is None:
        return None
    sign = -1 if (parts["sign"] or "").startswith(("-", "minus")) else 1
    return NumeralQuantity(sign * value, unit, not unit or unit in UNITS)


def _read_digits(text: str) -> tuple[Fraction, str] | None:
    # "2 1/2" has to be tried before "2", which would leave "1/2" as a unit.
    mixed = MIXED.match(text)
    if mixed and int(mixed["below"]):
        fraction = Fraction(int(mixed["above"]), int(mixed["below"]))
        return int(mixed["whole"]) + fraction, text[mixed.end() :]
    match = WRITTEN.match(text)
    if match is None:
        return None
    exponent = int(match["exponent"] or match["power"] or 0)
    if abs(exponent) > MOST_ZEROS:
        return None
    digits = re.sub(r"[, ']", "", match["number"]).rstrip(".")
    value = Fraction(digits) * Fraction(10) ** exponent
    if match["below"]:
        divisor = int(match["below"])
        if not divisor:
            return None
        value /= divisor
    return value, text[match.end() :]


def _read_words(text: str) -> tuple[Fraction, str] | None:
    """Read a number in words at the start of a text. Return it with the remaining text, or None."""
    words = text.replace("-", " ").split()
    value, count = words_value(words)
    if not count:
        return None
    return Fraction(value), " ".join(words[count:])


def words_value(words: list[str]) -> tuple[int, int]:
    """Return (value, number of words) of the number at the start of a list of words; (0, 0) if there is none."""
    total = current = taken = 0
    for position, word in enumerate(words):
        if word in WORDS:
            current += WORDS[word]
        elif word == "hundred":
            # "hundred" multiplies only the current group: "two thousand three hundred" is 2 * 1000 + 3 * 100.
            current = max(current, 1) * 100
        elif word in SCALES:
            total += max(current, 1) * SCALES[word]
            current = 0
        elif word == "and" and taken and position + 1 < len(words) and words[position + 1] in WORDS:
            if words[position - 1] in WORDS:
                break  # "two and three" are two numbers; "two hundred and three" is one
            continue
        else:
            break
        taken = position + 1
    return total + current, taken


def _scaled(value: Fraction, rest: str) -> tuple[Fraction, str]:
    """Multiply a number by the magnitudes that follow it: (17, " million people") → (17000000, "people")."""
    words = rest.split()
    while words and words[0] in MAGNITUDES:
        value *= MAGNITUDES[words.pop(0)]
    return value, " ".join(words)


def _unit(rest: str, currency: str) -> str | None:
    """Return the unit in the text after a number; None if that text is not a unit."""
    rest = rest.strip().rstrip(".")
    if not rest:
        return currency
    unit = UNIT_OF.get(rest)
    if unit is None:
        is_free = FREE_UNIT.fullmatch(rest) is not None
        if not is_free or NO_UNITS.intersection(rest.split()):
            return None
        unit = rest
    # A currency sign before the number excludes any other unit after it: "$5 km" is not a number with a unit.
    if currency and currency != unit:
        return None
    return unit
