"""One-place mutations of a program, in a fixed order: kind by kind, and within a kind in the order of the text.

The order looks at the program alone. Whether tests notice is what they are then asked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

COMPARISONS = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Add, ast.BitXor: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def flip_comparison(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
        return True
    return False


def swap_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        node.op = ARITHMETIC[type(node.op)]()
        return True
    return False


def swap_boolean(node: ast.AST) -> bool:
    if isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return True
    return False


def change_constant(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        return True
    return False


KINDS: dict[str, Callable[[ast.AST], bool]] = {
    "comparison": flip_comparison,
    "arithmetic": swap_arithmetic,
    "boolean": swap_boolean,
    "constant": change_constant,
}
"""Kind of mutation → function that changes a node in place and says whether it did."""


def without_result(code: str, function: str) -> str:
    """The code whose last `return` of a function, in the order of the text, returns None."""
    tree = ast.parse(code)
    returns = [node for node in in_order(definition_of(tree, function)) if isinstance(node, ast.Return)]
    returns[-1].value = ast.Constant(None)
    return ast.unparse(tree)


def definition_of(tree: ast.Module, function: str) -> ast.FunctionDef:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function][-1]


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


def mutations(code: str, function: str) -> Iterator[tuple[str, str]]:
    """(mutated code, kind of mutation): each replacement inside a function, each statement deleted, no result."""
    for kind, change in KINDS.items():
        for position in range(len(body_of(ast.parse(code), function))):
            tree = ast.parse(code)
            if change(body_of(tree, function)[position]):
                yield ast.unparse(tree), kind
    for position in range(len(statements_of(ast.parse(code), function))):
        tree = ast.parse(code)
        block, index = statements_of(tree, function)[position]
        if is_docstring(block[index]):
            continue
        block[index] = ast.Pass()
        yield ast.unparse(tree), "statement"
    yield without_result(code, function), "result"


def body_of(tree: ast.Module, function: str) -> list[ast.AST]:
    """Nodes of the statements of a function, in the order of the text."""
    return [node for statement in definition_of(tree, function).body for node in in_order(statement)]


def statements_of(tree: ast.Module, function: str) -> list[tuple[list[ast.stmt], int]]:
    """(block, index) of each statement inside a function, in the order of the text."""
    positions = []
    for node in in_order(definition_of(tree, function)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):  # the body of a lambda or a conditional expression is no block
                positions += [(block, index) for index in range(len(block))]
    return sorted(
        positions, key=lambda position: (position[0][position[1]].lineno, position[0][position[1]].col_offset)
    )


def is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
