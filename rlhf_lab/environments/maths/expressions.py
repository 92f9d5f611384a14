"""Numbers as solutions write them, and the value of "(5+3)*2" as an exact fraction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
TOKEN = re.compile(rf"\s*({NUMBER}|[-+*/()])")
SIGNS = str.maketrans({"×": "*", "x": "*", "÷": "/", "−": "-", "$": " "})
"""How prose writes operators, and what a reader of an expression passes over."""

Token = Fraction | str


def value_of(text: str) -> Fraction:
    """The value of a number as it is written: "1,200", "0.5", ".5"."""
    return Fraction(text.replace(",", ""))


def decimals_of(text: str) -> int:
    """Digits after the point of a number as it is written."""
    return len(text.partition(".")[2])


def written(value: Fraction, decimals: int = 2) -> str:
    """A number in at most `decimals` digits after the point, without trailing zeros."""
    if value.denominator == 1:
        return str(value.numerator)
    shown = f"{float(round(value, decimals)):.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def tokens_of(expression: str) -> list[Token] | None:
    """Numbers, operators and parentheses of an expression, in order; None when it holds anything else."""
    text = expression.translate(SIGNS).strip()
    found: list[Token] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            return None
        token = match[1]
        found.append(token if token in "-+*/()" else value_of(token))
        position = match.end()
    return found


def evaluate(tokens: Sequence[Token]) -> Fraction | None:
    """The exact value of an expression; None when it is not one, or divides by zero."""
    rest = list(tokens)[::-1]
    try:
        value = _sum(rest)
    except (IndexError, ZeroDivisionError, TypeError):
        return None
    return value if not rest else None


def _sum(rest: list[Token]) -> Fraction:
    value = _product(rest)
    while rest and rest[-1] in ("+", "-"):
        sign = rest.pop()
        other = _product(rest)
        value = value + other if sign == "+" else value - other
    return value


def _product(rest: list[Token]) -> Fraction:
    value = _atom(rest)
    while rest and rest[-1] in ("*", "/"):
        sign = rest.pop()
        other = _atom(rest)
        value = value * other if sign == "*" else value / other
    return value


def _atom(rest: list[Token]) -> Fraction:
    token = rest.pop()
    if token == "-":
        return -_atom(rest)
    if token == "(":
        value = _sum(rest)
        if rest.pop() != ")":
            raise TypeError
        return value
    if isinstance(token, str):
        raise TypeError
    return token
