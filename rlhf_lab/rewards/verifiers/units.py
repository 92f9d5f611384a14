r"""Unit of a final answer: "5 km", "$18", `5\,\text{m}^2`, "60 km per hour", "3 hours 15 minutes", "5 p.m.".

Units of the same kind are converted if the factor is exact. These are lengths and masses (metric and imperial), times
up to a week, years and months, litres and cubic metres, hectares and square metres, US cups to gallons, cents and
dollars, SI prefixes of watt, joule, volt, ampere, hertz, newton, pascal and mole, and powers and ratios of these
(72 km/h = 20 m/s). Not converted: months to days, gallons to litres, temperatures, degrees to radians, one currency to
another, joules to newton metres. A word that is in no table is a unit of its own: apples are not pears.

Not supported: "ton" as a mass (there are three), "pounds" as money (they are a mass), feet and inches as 5'3".
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

# (base unit, exponent) → names of a unit → its exact size in base units. Sizes are fractions, so that conversions are
# exact: 1 inch is 127/5000 m.
_CONVERTED = {
    ("metre", 1): {
        "nm nanometre nanometer": "1/1000000000",
        "um µm μm micrometre micrometer micron": "1/1000000",
        "mm millimetre millimeter": "1/1000",
        "cm centimetre centimeter": "1/100",
        "dm decimetre decimeter": "1/10",
        "m metre meter": "1",
        "km kilometre kilometer": "1000",
        "Mm": "1000000",
        "in inch inches": "127/5000",
        "ft foot feet": "381/1250",
        "yd yard": "1143/1250",
        "mi mile": "201168/125",
    },
    ("metre", 2): {"ha hectare": "10000"},
    ("metre", 3): {
        "ml mL millilitre milliliter": "1/1000000",
        "cl cL centilitre centiliter": "1/100000",
        "dl dL decilitre deciliter": "1/10000",
        "l L litre liter": "1/1000",
        "ML": "1000",
    },
    ("gram", 1): {
        "mg milligram": "1/1000",
        "g gram gramme": "1",
        "kg kilo kilogram kilogramme": "1000",
        "Mg tonne": "1000000",
        "oz ounce": "45359237/1600000",
        "lb pound": "45359237/100000",
    },
    ("second", 1): {
        "ms millisecond": "1/1000",
        "s sec second": "1",
        "min minute": "60",
        "h hr hour": "3600",
        "day": "86400",
        "week wk": "604800",
    },
    ("month", 1): {"month": "1", "yr year": "12"},
    ("US cup", 1): {"cup": "1", "pint": "2", "quart": "4", "gal gallon": "16"},
    ("dollar", 1): {"¢ cent penny pennies": "1/100", "$ dollar buck usd": "1"},
}
_SPEEDS = {"mph": "1397/3125", "kph": "5/18", "kmh": "5/18"}  # in metres per second
# Symbol and name of units with SI prefixes. Their symbols are case-sensitive: mW and MW differ.
_WITH_PREFIXES = ("W watt", "J joule", "V volt", "A ampere", "Hz hertz", "N newton", "Pa pascal", "mol mole", "eV")
_PREFIXES = {"": "1", "n": "1/1000000000", "µ": "1/1000000", "m": "1/1000", "k": "1000", "M": "1000000"}
_PREFIXES |= {"G": "1000000000"}
# Units with several names but without conversion; each is its own base unit.
_UNCONVERTED: tuple[str, ...] = ("degree deg", "rad radian", "celsius", "fahrenheit", "K kelvin", "am", "pm")
_UNCONVERTED += ("€ euro eur", "£ gbp sterling", "¥ yen jpy")

Powers = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PhysicalUnit:
    """Unit as a product of base units.

    Attributes:
        powers: (base unit, exponent) pairs, sorted. Two units are of the same kind if and only if these are equal.
        factor: size of this unit in that product of base units.
    """

    powers: Powers
    factor: Fraction = Fraction(1)

    def to_the(self, exponent: int) -> PhysicalUnit:
        return PhysicalUnit(tuple((base, power * exponent) for base, power in self.powers), self.factor**exponent)

    def times(self, other: PhysicalUnit) -> PhysicalUnit:
        powers = Counter(dict(self.powers))
        for base, power in other.powers:
            powers[base] += power
        return PhysicalUnit(
            tuple(sorted((base, power) for base, power in powers.items() if power)), self.factor * other.factor
        )


NO_UNIT = PhysicalUnit(())

_EXACT_CASE = {
    f"{prefix}{names.split()[0]}": PhysicalUnit(((names.split()[0], 1),), Fraction(factor))
    for names in _WITH_PREFIXES
    for prefix, factor in _PREFIXES.items()
}
"""Symbols that differ only in case: mW and MW."""
_NAMES = {
    name: PhysicalUnit((kind,), Fraction(factor))
    for kind, units in _CONVERTED.items()
    for names, factor in units.items()
    for name in names.split()
}
_NAMES |= {name: PhysicalUnit((("metre", 1), ("second", -1)), Fraction(factor)) for name, factor in _SPEEDS.items()}
_NAMES |= {name: PhysicalUnit(((names.split()[0], 1),)) for names in _UNCONVERTED for name in names.split()}
_NAMES |= {name: PhysicalUnit(((names.split()[0], 1),)) for names in _WITH_PREFIXES for name in names.split()[1:]}
KNOWN: Mapping[str, PhysicalUnit] = {**_EXACT_CASE, **_NAMES}

SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = ("third", "fourth", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth")
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
CHANGES = {
    *("and", "or", "not", "plus", "minus", "times", "divided", "factorial", "squared", "cubed", "half", "halves"),
    *("negative", "below", "over", "choose", "mod", "modulo", "point", "percent", "remainder", "infinity"),
    *(f"{name}{plural}" for name in _ORDINALS for plural in ("", "s")),
    *_NUMBERS,
    *SCALES,
}
"""Words after a number that change the number, or make it something other than one number."""
FORMULA = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "exp"),
    *("sqrt", "det", "gcd", "lcm", "max", "lim", "alpha", "beta", "gamma", "theta", "lambda", "phi", "psi", "omega"),
    "sigma",
}
"""Mathematical words of three letters or more after a number; "sec" is a second only in `\\text`."""
JOINING = {"in", "at", "of", "on", "by", "to", "for", "from", "with", "the", "all", "total"}
"""Words that are not units when they follow other words: "in" is not inches in "18 dollars in all"."""
PER = {"per", "a", "an", "each", "every"}
POWERS_BEFORE = {"square": 2, "sq": 2, "cubic": 3}
POWERS_BEHIND = {"squared": 2, "cubed": 3, "²": 2, "³": 3}

_TEXT = r"\\(?:text|mathrm|textrm|mbox|operatorname|textbf|mathbf)\s*\{([^{}]*)\}"
_ANY_TEXT = _TEXT.replace("([^{}]*)", "[^{}]*")
_DEGREES = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|°|\\degree\b)"
_EXPONENT = r"(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d)|[²³])"
_NAME = rf"(?:[^\W\d_²³]+(?:[-'’.][^\W\d_²³]+)*\.?|[$€£¥¢]){_EXPONENT}?"
_JOINT = r"(?:\s*(?:\\cdot|[·*/])\s*|\s+)"
_NAMES_IN_A_ROW = rf"(?:/\s*)?{_NAME}(?:{_JOINT}{_NAME})*"
_DIGITS = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_NUMBER = rf"{_DIGITS}(?:\s*/\s*\d+|\s+\d+\s*/\s*\d+)?"
_FRACTION = r"(?:\d+\s*)?\\[dtc]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d)"

SPACE = re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad\b|~|[\u00a0\u2009\u202f]")
"""A LaTeX command for a space. "\\\\ " does not match: it is the end of a matrix row, followed by an ordinary space."""
NEGATIVE_SPACE = re.compile(r"(?<!\\)\\!")
"""LaTeX that moves characters closer together: 32,\\!000 in MATH."""
FRACTION_CHARACTER = re.compile("[¼-¾⅐-⅞]")  # ½, ⅔
DELIMITED = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$")
"""Mathematics between two $ signs, which are then not dollars."""
UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s*\{{\s*({_ANY_TEXT})\s*\}}\s*\{{\s*({_ANY_TEXT}{_EXPONENT}?)\s*\}}")
CURRENCY = re.compile(r"([-+−–]?)\s*(\\\$|[$€£¥])\s*([-+−–]?\s*(?:\d|\.\d|\\[dtc]?frac).*)", re.DOTALL)
MARKED = re.compile(rf"(.*?\S)\s*((?:{_ANY_TEXT}|{_DEGREES})(?:{_EXPONENT}|{_JOINT}|{_ANY_TEXT}|{_NAME})*+)", re.DOTALL)
r"""Any text followed by a unit that LaTeX marks as such: `x\text{ cm}^2`, `90^\circ`."""
_BELOW = rf"\s*/\s*\({_NAME}(?:{_JOINT}{_NAME})*\)"
BEHIND_NUMBER = re.compile(rf"([-+−–]?\s*(?:{_NUMBER}|{_FRACTION}|\d{{1,2}}:\d\d))\s*({_NAMES_IN_A_ROW}(?:{_BELOW})?)")
BEHIND_FORMULA = re.compile(rf"(.*(?:[\d)}}]|\\pi))\s+({_NAME}(?:\s*/\s*{_NAME})*)", re.DOTALL)
HAS_NUMBER = re.compile(r"\d|\\(?!text)|^\W*[a-z]\W*$")
"""Digits, a command or a single letter: the text that a unit may follow."""
VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")
SUMMAND = re.compile(rf"({_DIGITS})\s*([^\W\d_²³]+)\.?(?:,?\s+(?:and\s+)?|$)")
HAS_PERCENT = re.compile(r"(?:%|\bpercent)\s*\}?$", re.IGNORECASE)
TOKEN = re.compile(r"[^\W\d_²³]+(?:[-'’][^\W\d_²³]+)*|[$€£¥¢²³/]|\^\s*\{?\s*-?\d")


@dataclass(frozen=True, slots=True)
class ParsedQuantity:
    """Answer split into number and unit.

    Attributes:
        number: the answer without its unit, as text.
        unit: unit of the answer; None if it has none. A percent sign is part of the number.
        scale: multiplier of the number, e.g. for "5 million".
    """

    number: str
    unit: PhysicalUnit | None = None
    scale: int = 1


def read_quantity(answer: str) -> ParsedQuantity | None:
    """Split an answer into number and unit; return None if words change its number: 3 quarters, 5 squared."""
    text = SPACE.sub(" ", NEGATIVE_SPACE.sub("", answer))
    # "1½" is 1 1/2, and not 11/2
    text = FRACTION_CHARACTER.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]), text)
    text = text.replace("\N{FRACTION SLASH}", "/").strip()
    text = UNIT_FRACTION.sub(r"\1/\2", DELIMITED.sub(r"\1", text).strip())
    currency = None
    # A currency sign precedes its number; all other units follow it.
    sign = CURRENCY.fullmatch(text)
    if sign is not None:
        currency, text = KNOWN[sign[2].removeprefix("\\")], sign[1] + sign[3]
    # A percent sign stays in the number; `equivalence.same_number` decides whether it matters.
    if HAS_PERCENT.search(text):
        return ParsedQuantity(text, currency)
    total = _read_sum(text)
    if total is not None:
        return total
    # A unit that LaTeX marks is unambiguous, so it is tried before words.
    number, tokens = _split_marked(text) or _split_words(text)
    scale, tokens = _take_scale(tokens)
    if not tokens:
        return ParsedQuantity(number, currency, scale)
    unit = _unit(tokens, currency)
    return None if unit is None else ParsedQuantity(number, unit, scale)


def _split_marked(text: str) -> tuple[str, list[str]] | None:
    r"""Split an answer whose unit is in \text{…} or is a degree sign into number and words; None for other answers."""
    match = MARKED.fullmatch(text)
    if match is None or not HAS_NUMBER.search(match[1]):
        return None
    return match[1], _tokens(match[2])


def _split_words(text: str) -> tuple[str, list[str]]:
    """Split an answer into its number and the words after it, or its formula and the known unit after it.

    The list of words is empty if there is no unit.
    """
    match = BEHIND_NUMBER.fullmatch(text)
    if match is not None:
        tokens = _tokens(match[2])
        return (match[1], tokens) if all(map(_may_be_unit, tokens)) else (text, [])
    match = BEHIND_FORMULA.fullmatch(text)
    # The last letter of "2(x + 1) m" is a variable; that of "2\sqrt{3} m" is a unit.
    if match is not None and (len(match[2]) > 1 or not VARIABLE.search(match[1])):
        tokens = _tokens(match[2])
        if all(_is_mark(token) or _known(token) for token in tokens):
            return match[1], tokens
    return text, []


def _read_sum(text: str) -> ParsedQuantity | None:
    """Return the sum of "3 hours 15 minutes" in base units; None for any other answer."""
    total, kinds, end, summands = Fraction(0), set(), 0, 0
    while end < len(text):
        match = SUMMAND.match(text, end)
        unit = _known(match[2]) if match else None
        if match is None or unit is None:
            return None
        total += Fraction(match[1].replace(",", "")) * unit.factor
        kinds.add(unit.powers)
        end, summands = match.end(), summands + 1
    return ParsedQuantity(str(total), PhysicalUnit(kinds.pop())) if summands > 1 and len(kinds) == 1 else None


def _tokens(words: str) -> list[str]:
    """Return the names, exponents and division signs of a unit, in order."""
    text = re.sub(_DEGREES, " degree ", re.sub(_TEXT, r" \1 ", words)).replace("\\cdot", " ")
    # Remove the periods of abbreviations, but not decimal points.
    text = re.sub(r"(?<=[^\W\d_²³])\.(?=[^\W\d_²³]|\s|$)", "", text)  # a.m., sq. ft.
    # "degrees Celsius" is one unit; elsewhere C and F may be variables.
    text = re.sub(r"\b(?:degrees?\s+)?(?:C|[cC]elsius)\b", "celsius", text) if "egree" in text else text
    text = re.sub(r"\b(?:degrees?\s+)?(?:F|[fF]ahrenheit)\b", "fahrenheit", text) if "egree" in text else text
    return TOKEN.findall(text)


def _take_scale(tokens: list[str]) -> tuple[int, list[str]]:
    scale = SCALES.get(tokens[0].casefold()) if tokens else None
    return (1, tokens) if scale is None else (scale, tokens[1:])


def _is_mark(token: str) -> bool:
    return token[0] in "/^²³"


def _may_be_unit(token: str) -> bool:
    """Return True if a word after a number may be part of a unit (5 m, 5 apples), not of a formula (5 x, 5 sin x)."""
    if _is_mark(token) or token.casefold() in {*JOINING, *PER, *CHANGES, *POWERS_BEFORE}:
        return True
    return token not in FORMULA and (len(token) > 2 or _known(token) is not None)


def _known(name: str) -> PhysicalUnit | None:
    """Return the unit with this name in the table, singular or plural; only symbols are case-sensitive."""
    for written in (name, name.casefold()):
        for singular in (written, written.removesuffix("s") if len(written) > 2 else written):
            unit = (KNOWN if written == name else _NAMES).get(singular)
            if unit is not None:
                return unit
    return None


def _unit(tokens: Sequence[str], currency: PhysicalUnit | None) -> PhysicalUnit | None:
    """Return the product of the units in words, times a currency; None if one of the words changes the number."""
    # `sign` is −1 after "per" or a slash; `power` is 2 or 3 after "square" or "cubic".
    product, last, sign, power = currency or NO_UNIT, currency, 1, 1
    for i, token in enumerate(tokens):
        word = token.casefold()
        # "squared" and exponents follow their unit, which is already in the product once.
        exponent = POWERS_BEHIND.get(word) or (int(token.lstrip("^ {")) if token[0] == "^" else None)
        if exponent is not None and i and last is not None:
            product = product.times(last.to_the(exponent - 1))
        elif word in POWERS_BEFORE and i + 1 < len(tokens):
            power = POWERS_BEFORE[word]
        elif token == "/" or word == "per" or (word in PER and last is not None and i + 1 < len(tokens)):
            sign = -1
        elif word in CHANGES and not (word == "times" and i == len(tokens) - 1):  # "3 times" is a count
            return None
        else:
            is_joining = i > 0 and word in JOINING and tokens[i - 1].casefold() not in {"/", *PER, *POWERS_BEFORE}
            last = (None if is_joining else _known(token)) or PhysicalUnit(((_stem(token), 1),))
            is_repeated = i == 0 and currency is not None and last.powers == currency.powers  # $18 dollars
            last = last.to_the(power * sign)
            product = last if is_repeated else product.times(last)
            power = 1
    return product


def _stem(word: str) -> str:
    """Return an unknown word in a common form for singular and plural; words of four letters or more in lower case."""
    word = word.casefold() if len(word) > 3 else word
    if len(word) > 3 and not word.endswith("ss"):
        word = word.removesuffix("s")
    # The plural alone does not distinguish buses (bus) from houses (house), or berries from cookies: both lose these
    # endings.
    return re.sub(r"ie$", "y", re.sub(r"([sxzo]|ch|sh)e$", r"\1", word))
