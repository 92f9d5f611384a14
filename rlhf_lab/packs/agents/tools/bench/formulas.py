"""Evaluation of formulas in the task files: "a + b", "first if n > m else second", in exact arithmetic.

The supported subset of Python's expressions is evaluated on the syntax tree. It contains nothing that could call or
access other code.
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
    """Return the exact value of a formula. Raise ValueError, which quotes the formula, if it has none."""
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        return _value(tree.body, values)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{formula!r} is not a valid formula of {', '.join(values)}: {error}") from None


def _value(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Name():
            return values[node.id]
        # Fraction, because the answers of tasks have to be exact
        case ast.Constant(value=int() as index):
            return Fraction(index)
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp():
            left, right = _value(node.left, values), _value(node.right, values)
            apply = OPERATORS[type(node.op)]
            return apply(left, right)
        case ast.IfExp():
            branch = node.body if _holds(node.test, values) else node.orelse
            return _value(branch, values)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            function = FUNCTIONS[name]
            return function(_value(argument, values) for argument in node.args)
    raise TypeError(f"{ast.unparse(node)} is not allowed")


def _holds(node: ast.expr, values: Mapping[str, Value]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            compare = COMPARISONS[type(comparison)]
            return bool(compare(_value(left, values), _value(right, values)))
    raise TypeError(f"{ast.unparse(node)} is not a comparison of two values")
