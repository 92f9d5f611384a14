"""Numbers as solutions write them, and the value of "(5+3)*2" as an exact fraction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
TOKEN = re.compile(rf"\s*({NUMBER}|[-+*/()])")
SIGNS = str.maketrans({"×": "*", "x": "*", "÷": "/", "−": "-", "$": " "})
"""Operators as prose writes them → as `evaluate` reads them; a currency sign is skipped."""

Token = Fraction | str


def value_of(text: str) -> Fraction:
    """The value of a number as it is written: "1,200", "0.5", ".5"; a sign may stand before it."""
    return Fraction(Decimal(text.replace(",", "")))  # Decimal reads any number of digits, int 4,300


def decimals_of(text: str) -> int:
    """Digits after the point of a number as it is written."""
    return len(text.partition(".")[2])


def written(value: Fraction, decimals: int = 2) -> str:
    """A number in at most `decimals` digits after the point, without trailing zeros.

    Raises OverflowError or ValueError for one of hundreds or thousands of digits.
    """
    if value.denominator == 1:
        return str(value.numerator)
    shown = f"{float(round(value, decimals)):.{decimals}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def tokens_of(expression: str) -> list[Token] | None:
    """Numbers, operators and parentheses of an expression, in order; None when it holds anything else."""
    text = expression.translate(SIGNS).strip()
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if not match:
            return None
        token = match[1]
        tokens.append(token if token in "-+*/()" else value_of(token))
        position = match.end()
    return tokens


def evaluate(tokens: Sequence[Token]) -> Fraction | None:
    """The exact value of an expression; None when it is not one, divides by zero, or has hundreds of parentheses.

    Recursive descent: a sum of products of atoms. Malformed input raises IndexError (it ends too early) or TypeError.
    """
    stack = list(tokens)[::-1]  # the next token last, so that it can be popped
    try:
        value = _parse_sum(stack)
    except (IndexError, ZeroDivisionError, TypeError, RecursionError):
        return None
    return value if not stack else None


def computed(text: str, decimals: int = 2) -> str | None:
    """The value of an expression as `written` writes it; None when it has none, or is too deep or too large."""
    tokens = tokens_of(text)
    value = evaluate(tokens) if tokens else None
    try:
        return None if value is None else written(value, decimals)
    except (OverflowError, ValueError):
        return None


def _parse_sum(stack: list[Token]) -> Fraction:
    value = _parse_product(stack)
    while stack and stack[-1] in ("+", "-"):
        operator = stack.pop()
        operand = _parse_product(stack)
        value = value + operand if operator == "+" else value - operand
    return value


def _parse_product(stack: list[Token]) -> Fraction:
    value = _parse_atom(stack)
    while stack and stack[-1] in ("*", "/"):
        operator = stack.pop()
        operand = _parse_atom(stack)
        value = value * operand if operator == "*" else value / operand
    return value


def _parse_atom(stack: list[Token]) -> Fraction:
    """A number, a negated atom, or a sum in parentheses."""
    token = stack.pop()
    if token == "-":
        return -_parse_atom(stack)
    if token == "(":
        value = _parse_sum(stack)
        if stack.pop() != ")":
            raise TypeError
        return value
    if isinstance(token, str):
        raise TypeError
    return token
