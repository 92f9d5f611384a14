"""Numbers as solutions write them, and exact evaluation of expressions such as "(5+3)*2" as a fraction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"  # "1,200.5", "12", ".5"
TOKEN = re.compile(rf"\s*({NUMBER}|[-+*/()])")  # one number, operator or parenthesis
SIGNS = str.maketrans({"×": "*", "x": "*", "÷": "/", "−": "-", "$": " "})
"""Operators in prose → operators that `evaluate` accepts; a currency sign becomes a space."""

MAX_EXPRESSION = 1_000
"""Maximum number of characters of an expression that is evaluated. The value of a longer one may be huge."""

Token = Fraction | str


def value_of(text: str) -> Fraction:
    """Return the value of a written number: "1,200", "0.5", ".5"; it may have a sign."""
    return Fraction(Decimal(text.replace(",", "")))  # Decimal has no limit of digits; int accepts up to 4,300


def decimals_of(text: str) -> int:
    """Return the number of digits after the point of a written number."""
    return len(text.partition(".")[2])


def format_decimal(value: Fraction, decimals: int = 2) -> str:
    """Format a number with up to `decimals` digits after the point, without trailing zeros.

    Raises ValueError for a number with thousands of digits.
    """
    # in integers, because a float has only 15 exact digits
    scaled = round(value * 10**decimals)
    digits = str(abs(scaled)).rjust(decimals + 1, "0")
    shown = f"{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}".rstrip("0").rstrip(".")
    return f"-{shown}" if scaled < 0 else shown


def tokens_of(expression: str) -> list[Token] | None:
    """Return numbers, operators and parentheses of an expression, in order; None if it contains anything else."""
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
    """Return the exact value of an expression; None if it is malformed, divides by zero, or is nested too deeply.

    Recursive descent: a sum of products of atoms. Malformed input raises IndexError (it ends too early) or TypeError.
    """
    stack = list(tokens)[::-1]  # reversed, so that `pop` returns the next token
    try:
        value = _parse_sum(stack)
    except (IndexError, ZeroDivisionError, TypeError, RecursionError):
        return None
    return value if not stack else None


def computed(text: str, decimals: int = 2) -> str | None:
    """Return the formatted value of an expression; None if it has none, or is nested too deeply or too large."""
    tokens = tokens_of(text) if len(text) <= MAX_EXPRESSION else None
    value = evaluate(tokens) if tokens else None
    return None if value is None else format_or_none(value, decimals)


def format_or_none(value: Fraction, decimals: int = 2) -> str | None:
    """Return the result of `format_decimal`; None for a number with too many digits."""
    try:
        return format_decimal(value, decimals)
    except ValueError:
        return None


def _parse_sum(stack: list[Token]) -> Fraction:
    value = _parse_product(stack)
    while stack and stack[-1] in ("+", "-"):
        operator = stack.pop()
        operand = _parse_product(stack)
        # left-associative: 5 − 3 − 1 is (5 − 3) − 1
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
    """Parse a number, a negated atom, or a sum in parentheses."""
    token = stack.pop()
    if token == "-":
        return -_parse_atom(stack)
    if token == "(":
        value = _parse_sum(stack)
        if stack.pop() != ")":  # an empty stack raises IndexError, which `evaluate` catches too
            raise TypeError
        return value
    if isinstance(token, str):  # an operator without an operand
        raise TypeError
    return token
