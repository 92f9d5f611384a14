"""One-place mutations of a program, in a fixed order: kind by kind, and within a kind in the order of the text.

The order looks at the program alone. Whether tests notice is what they are then asked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

COMPARISONS = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Add, ast.BitXor: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SWAPS: list[dict] = [COMPARISONS, ARITHMETIC, {ast.And: ast.Or, ast.Or: ast.And}, {}]
"""Operators and what replaces them, by kind of mutation; the last kind changes constants."""


def change(node: ast.AST, swaps: dict) -> bool:
    """Change a node in place by one kind of mutation; False if it does not apply."""
    if not swaps:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float))):
            return False
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        return True
    is_comparison = isinstance(node, ast.Compare)
    new = swaps.get(type(node.ops[0] if is_comparison else getattr(node, "op", None)))
    if new is None:
        return False
    if is_comparison:
        node.ops[0] = new()
    else:
        node.op = new()
    return True


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


def body_of(tree: ast.Module, function: str) -> list[ast.AST]:
    """Nodes of the statements of the last definition of a function, in the order of the text."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    return [node for statement in definitions[-1].body for node in in_order(statement)]


def without_result(code: str, function: str) -> str:
    """The code whose last `return` of a function, in the order of the text, returns None."""
    tree = ast.parse(code)
    [node for node in body_of(tree, function) if isinstance(node, ast.Return)][-1].value = ast.Constant(None)
    return ast.unparse(tree)


def mutations(code: str, function: str) -> Iterator[str]:
    """Mutated codes: each replacement inside a function, each statement that does nothing, no result."""
    count = len(body_of(ast.parse(code), function))
    for swaps in SWAPS:
        for position in range(count):
            tree = ast.parse(code)
            if change(body_of(tree, function)[position], swaps):
                yield ast.unparse(tree)
    for position in range(count):
        tree = ast.parse(code)
        statement = body_of(tree, function)[position]
        is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.stmt) and not is_docstring:
            statement.__class__ = ast.Pass
            yield ast.unparse(tree)
    yield without_result(code, function)
