r"""Unit of a final answer: "5 km", "$18", `5\,\text{m}^2`, "60 km per hour", `90^\circ`, "5 p.m.", "18 eggs left".

A unit is compared as words, and nothing is converted: 5 km is 5 kilometres, but not 5000 m. A word without another name
in the table below is a unit of its own: apples are not pears.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_NAMES = (
    "millimetre mm millimeter, centimetre cm centimeter, metre m meter, kilometre km kilometer, inch in, foot ft feet, "
    "yard yd, mile mi, gram g, milligram mg, kilogram kg, ounce oz, pound lb, millilitre ml milliliter, litre l liter, "
    "second s sec, minute min, hour h hr, week wk, year yr, cent ¢ penny, dollar $, euro € eur, degree ° deg, am, pm, "
    "watt W, milliwatt mW, kilowatt kW, megawatt MW, volt V, ampere A, joule J, newton N, hertz Hz, pascal Pa, "
    "mole mol, kelvin K, tonne Mg"
)
ONE_NAME = {name: names.split()[0] for names in _NAMES.split(", ") for name in names.split()}
"""Name of a unit → one of its names. Only these may have one or two letters, or follow a formula. mW is not MW."""
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = ("third", "fourth", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth")
CHANGES = {
    *("and", "or", "not", "plus", "minus", "times", "divided", "factorial", "squared", "cubed", "half", "halves"),
    *("negative", "below", "over", "choose", "mod", "modulo", "point", "percent", "remainder", "infinity"),
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *(f"{name}{plural}" for name in _ORDINALS for plural in ("", "s")),
    *SCALES,
}
"""Words after a number that change the number, or make it something other than one number."""
FORMULA = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "exp"),
    *("sqrt", "det", "gcd", "lcm", "max", "lim", "alpha", "beta", "gamma", "theta", "lambda", "phi", "psi", "omega"),
    "sigma",
}
"""Mathematical words of three letters or more after a number; "sec" is a second only in `\\text`."""
SHORT = {"a", "an", "at", "by", "in", "of", "on", "to"}
"""Words of one or two letters between other words: 18 dollars a day."""

_TEXT = r"\\(?:text|mathrm|textrm|mbox|operatorname|textbf|mathbf)\s*\{([^{}]*)\}"
_ANY_TEXT = _TEXT.replace("([^{}]*)", "[^{}]*")
_DEGREES = r"(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|°|\\degree\b)"
_POWER = r"(?:\^\s*(?:\{\s*-?\d\s*\}|-?\d)|[²³])"
_NAME = rf"(?:[^\W\d_²³]+(?:[-'’.][^\W\d_²³]+)*\.?|[$€£¥¢]){_POWER}?"
_JOINT = r"(?:\\cdot|[·*/])"
_WORDS = rf"(?:/\s*)?{_NAME}(?:(?:\s*{_JOINT}\s*|\s+){_NAME})*"
_NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+|\s+\d+\s*/\s*\d+)?"
_FRACTION = r"(?:\d+\s*)?\\[dtc]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d)"

SPACE = re.compile(r"(?<!\\)\\[,;:> ]|\\q?quad\b|~|[\u00a0\u2009\u202f]")
"""A LaTeX command for a space. "\\\\ " does not match: it is the end of a matrix row, followed by an ordinary space."""
NEGATIVE_SPACE = re.compile(r"(?<!\\)\\!")
"""LaTeX that moves characters closer together: 32,\\!000 in MATH."""
FRACTION_CHARACTER = re.compile("[¼-¾⅐-⅞]")  # ½, ⅔
DELIMITED = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$")
"""Mathematics between two $ signs, which are then not dollars."""
CURRENCY = re.compile(r"([-+−–]?)\s*\\?([$€£¥])\s*([-+−–]?\s*(?:\d|\.\d|\\[dtc]?frac).*)", re.DOTALL)
MARKED = re.compile(
    rf"(.*?\S)\s*((?:{_ANY_TEXT}|{_DEGREES})(?:{_POWER}|\s*(?:{_ANY_TEXT}|{_NAME}|{_JOINT}))*+)", re.DOTALL
)
r"""Any text followed by a unit that LaTeX marks as such: `x\text{ cm}^2`, `90^\circ`."""
BEHIND_NUMBER = re.compile(rf"([-+−–]?\s*(?:{_NUMBER}|{_FRACTION}|\d{{1,2}}:\d\d))\s*({_WORDS})")
BEHIND_FORMULA = re.compile(rf"(.*(?:[\d)}}]|\\pi))\s+({_WORDS})", re.DOTALL)
HAS_NUMBER = re.compile(r"\d|\\(?!text)|^\W*[a-z]\W*$")
"""Digits, a command or a single letter: the text that a unit may follow."""
UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s*\{{\s*({_ANY_TEXT})\s*\}}\s*\{{\s*({_ANY_TEXT}{_POWER}?)\s*\}}")
SEVERAL = re.compile(r"\d\s*([^\W\d_]+)\.?,?\s+(?:and\s+)?\d")
"""A word between two numbers: 3 hours 15 minutes, but also 3 times 5."""
VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")
HAS_PERCENT = re.compile(r"(?:%|\bpercent)\s*\}?$", re.IGNORECASE)
TOKEN = re.compile(r"[^\W\d_²³]+(?:[-'’][^\W\d_²³]+)*|[$€£¥¢°/]|\^-?\d")


def split_unit(answer: str) -> tuple[str, tuple[str, ...]] | None:
    """Return (answer without its unit, the words of the unit); None if words change its number: 3 quarters, 5 squared.

    None also for several units, such as 3 hours 15 minutes. A percent sign is part of the number, and "5 million" is
    the number 5000000.
    """
    text = SPACE.sub(" ", NEGATIVE_SPACE.sub("", answer))
    # "1½" is 1 1/2, and not 11/2
    text = FRACTION_CHARACTER.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]), text)
    text = DELIMITED.sub(r"\1", text.replace("\N{FRACTION SLASH}", "/").strip()).strip()
    text = UNIT_FRACTION.sub(r"\1/\2", text)
    several = SEVERAL.search(text)
    if several and _may_be_unit(several[1]) and several[1].casefold() not in SHORT | CHANGES:
        return None
    sign = CURRENCY.fullmatch(text)
    currency = [sign[2]] if sign else []
    if sign:
        text = sign[1] + sign[3]
    number, tokens = (text, []) if HAS_PERCENT.search(text) else _split_marked(text) or _split_words(text)
    if tokens and tokens[0].casefold() in SCALES:
        if not re.fullmatch(r"-?[\d,]*\.?\d+", number):
            return None
        number, tokens = str(Fraction(number.replace(",", "")) * SCALES[tokens[0].casefold()]), tokens[1:]
    words = [_one_name(token) for token in currency + tokens]
    if currency and words[1:2] == words[:1]:  # $18 dollars
        words = words[1:]
    # "3 times" is a count
    changed = CHANGES & set(words if words[-1:] != ["times"] else words[:-1])
    return None if changed else (number, tuple(words))


def _split_marked(text: str) -> tuple[str, list[str]] | None:
    r"""Split an answer whose unit is in \text{…} or is a degree sign into number and words; None for other answers."""
    match = MARKED.fullmatch(text)
    return (match[1], _tokens(match[2])) if match and HAS_NUMBER.search(match[1]) else None


def _split_words(text: str) -> tuple[str, list[str]]:
    """Split an answer into its number and the words after it, or its formula and the known unit after it."""
    if match := BEHIND_NUMBER.fullmatch(text):
        tokens = _tokens(match[2])
        return (match[1], tokens) if all(map(_may_be_unit, tokens)) else (text, [])
    match = BEHIND_FORMULA.fullmatch(text)
    # The last letter of "2(x + 1) m" is a variable; that of "2\sqrt{3} m" is a unit.
    if match and (len(match[2]) > 1 or not VARIABLE.search(match[1])):
        tokens = _tokens(match[2])
        if all(token[0] in "/^" or _one_name(token) in ONE_NAME.values() for token in tokens):
            return match[1], tokens
    return text, []


def _tokens(words: str) -> list[str]:
    """Return the names, powers and division signs of a unit: "60 km per hour" has km, / and hour."""
    text = re.sub(_DEGREES, " ° ", re.sub(_TEXT, r" \1 ", words)).replace("²", "^2").replace("³", "^3")
    text = text.replace("\\cdot", " ")
    # Remove the periods of abbreviations, but not decimal points.
    text = re.sub(r"(?<=[^\W\d_])\.(?=[^\W\d_]|\s|$)", "", re.sub(r"[{}]|(?<=\^)\s+", "", text))  # a.m., sq. ft.
    text = re.sub(r"\bmph\b", "mile / hour", re.sub(r"\b(?:square|sq)\s+([^\W\d_]+)", r"\1^2", text))
    text = re.sub(r"\bcubic\s+([^\W\d_]+)", r"\1^3", text)
    text = re.sub(r"(?:°|\bdegrees?)\s*(?:C\b|[Cc]elsius)", "celsius", text)
    text = re.sub(r"(?:°|\bdegrees?)\s*(?:F\b|[Ff]ahrenheit)", "fahrenheit", text)
    return TOKEN.findall(re.sub(r"\b(?:per|an?|each|every)\s+(?=[^\W\d_])", "/ ", text))


def _may_be_unit(token: str) -> bool:
    """Return True if a word after a number may be part of a unit (5 m, 5 apples), not of a formula (5 x, 5 sin x)."""
    if token[0] in "/^" or token.casefold() in SHORT | CHANGES:
        return True
    return token not in FORMULA and (len(token) > 2 or _one_name(token) in ONE_NAME.values())


def _one_name(token: str) -> str:
    """Return a word in one form for its singular, its plural and its symbol."""
    word = token.casefold()
    if token in ONE_NAME or word in ONE_NAME or word in CHANGES:
        return ONE_NAME.get(token) or ONE_NAME.get(word, word)
    if len(word) > 3 and not word.endswith("ss"):
        word = word.removesuffix("s")
    # The plural alone does not distinguish buses (bus) from houses (house), or berries from cookies: both lose these
    # endings.
    word = re.sub(r"ie$", "y", re.sub(r"([sxzo]|ch|sh)e$", r"\1", word))
    return ONE_NAME.get(word, word)
