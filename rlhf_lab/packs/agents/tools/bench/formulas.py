"""Formulas of the task files: "a + b", "first if n > m else second", exact.

A small part of Python's expressions, read from its syntax tree. Left out: everything that could call or reach anything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from fractions import Fraction

Value = str | Fraction

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
COMPARISONS = {ast.Gt: operator.gt, ast.Lt: operator.lt, ast.Eq: operator.eq}
FUNCTIONS = {"min": min, "max": max}


def compute(formula: str, values: Mapping[str, Value]) -> Value:
    """The value of a formula, exactly. Raises ValueError where it is none, naming it."""
    try:
        return _value(ast.parse(formula.strip(), mode="eval").body, values)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{formula!r} is no formula of {', '.join(values)}: {error}") from None


def _value(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Name():
            return values[node.id]
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp():
            left, right = _value(node.left, values), _value(node.right, values)
            return OPERATORS[type(node.op)](left, right)
        case ast.IfExp():
            branch = node.body if _holds(node.test, values) else node.orelse
            return _value(branch, values)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return FUNCTIONS[name](_value(argument, values) for argument in node.args)
    raise TypeError(f"{ast.unparse(node)} is not allowed")


def _holds(node: ast.expr, values: Mapping[str, Value]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            return bool(COMPARISONS[type(comparison)](_value(left, values), _value(right, values)))
    raise TypeError(f"{ast.unparse(node)} is no comparison of two values")
