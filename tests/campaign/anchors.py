"""The place of a fault: a definition, found by its qualified name, and a pattern that one node of its tree matches.

Neither formatting nor the file matters: a definition that moves to another module, or is reformatted, keeps its faults.
A pattern whose identifiers no longer occur in the definition still matches the one node that differs only in these
names, and the replacement takes the new names. `_1` … `_9` in a pattern stand for any expression.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = "rlhf_lab"
ROOT = Path(__file__).resolve().parents[2]
WILDCARD = re.compile(r"_[1-9]")
IDENTIFIERS = {ast.Name: "id", ast.Attribute: "attr", ast.keyword: "arg", ast.arg: "arg"}
"""Kind of node → the field that holds a name which somebody may change."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        name: for people and for `--only`.
        where: end of the dotted path of a function, class or constant, as long as needed to be unique in the package.
        before: an expression or a statement of that definition.
        after: what stands there instead; of an expression an expression.
        harm: what a researcher would get wrong.
    """

    name: str
    where: str
    before: str
    after: str
    harm: str

    @property
    def file(self) -> str:
        """The file of the definition, from the root of the checkout. Raises ValueError unless there is just one."""
        found = [(file, path) for file, path in definitions() if f".{path}".endswith(f".{self.where}")]
        if len(found) != 1:
            positions = ", ".join(path for _, path in found) or "none"
            raise self._error(f"{len(found)} definitions of the package are called {self.where}: {positions}")
        return found[0][0]

    def apply(self, text: str) -> str:
        """The file's text with the fault in it; all other lines keep their numbers."""
        module = ast.parse(text)
        path = _dotted(self.file)
        scopes = [node for name, node in _definitions(module.body, path) if f".{name}".endswith(f".{self.where}")]
        if len(scopes) != 1:
            raise self._error(f"{len(scopes)} definitions in {self.file} are called {self.where}")
        pattern = _parsed(self.before)[0]
        found = list(_matches(pattern, scopes[0]))
        if len(found) != 1:
            raise self._error(
                f"its pattern matches {len(found)} places in {self.where} of {self.file}: {self.before!r}"
            )
        node, binding = found[0]
        after = [_substituted(replacement, binding) for replacement in _parsed(self.after)]
        named = [part for one in after for part in ast.walk(one) if isinstance(part, ast.Name)]
        own = {part.id for part in named if isinstance(part.ctx, ast.Store)}
        unknown = {part.id for part in named} - {*own, *_identifiers(module), *vars(builtins)}
        if unknown:
            raise self._error(f"its replacement has names that {self.file} has not: {', '.join(sorted(unknown))}")
        return _replaced(text, node, after)

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"mutant {self.name}: {reason}. Correct its row in tests/campaign/mutations.py.")


def read_mutants(text: str) -> list[Mutant]:
    """Read faults in the notation of a diff: a line `name in where`, below it the harm, and lines with - and +."""
    found = []
    for entry in re.findall(r"^\w.*\n(?: .*\n)+", text, re.MULTILINE):
        head, harm, *changes = entry.splitlines()
        name, _, where = head.partition(" in ")
        before, after = ("\n".join(line[6:] for line in changes if line[4] == sign) for sign in "-+")
        found.append(Mutant(name, where, before, after, harm.strip()))
    return found


class Binding(NamedTuple):
    """Nodes that a pattern's wildcards and changed names stand for in the matched node."""

    nodes: dict[str, ast.AST]
    names: dict[str, str]


@cache
def definitions() -> list[tuple[str, str]]:
    """(file, dotted path) of each function, class and constant of the package."""
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        file = str(path.relative_to(ROOT))
        body = ast.parse(path.read_text(encoding="utf-8")).body
        found += [(file, name) for name, _ in _definitions(body, _dotted(file))]
    return found


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _definitions(body: list[ast.stmt], path: str, *, in_function: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, SCOPES):
            name = f"{path}.{node.name}"
            yield name, node
            yield from _definitions(node.body, name, in_function=not isinstance(node, ast.ClassDef))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not in_function:  # a local variable is no place of its own
                yield from ((f"{path}.{target.id}", node) for target in targets if isinstance(target, ast.Name))
        else:
            for inner in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, inner, []), path, in_function=in_function)


def _parsed(source: str) -> list[ast.AST]:
    """An expression, or statements."""
    body = ast.parse(source).body
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else list(body)


def _matches(pattern: ast.AST, scope: ast.AST) -> list[tuple[ast.AST, Binding]]:
    """Nodes that a pattern matches by its own names; where it has names that the scope has not, by any others."""
    own = _identifiers(scope)
    changed = frozenset(name for name in _identifiers(pattern) if name not in own and not WILDCARD.fullmatch(name))
    found = []
    for node in _replaceable(scope):
        binding = Binding({}, {})
        if _equal(pattern, node, binding, changed):
            found.append((node, binding))
    return found


def _replaceable(node: ast.AST) -> Iterator[ast.AST]:
    """Statements and expressions that may stand in parentheses; Python 3.11 has no positions within f-strings."""
    sliced = isinstance(node, ast.Tuple) and any(isinstance(element, ast.Slice) for element in node.elts)
    if isinstance(node, ast.stmt | ast.expr) and not isinstance(node, ast.Slice | ast.Starred) and not sliced:
        yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _replaceable(child)


def _identifiers(tree: ast.AST) -> set[str]:
    """Names in a tree, those of definitions and imports included."""
    found = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value.partition(".")[0])
    return found


def _equal(pattern: object, node: object, binding: Binding, changed: frozenset[str]) -> bool:
    if isinstance(pattern, ast.Name) and WILDCARD.fullmatch(pattern.id):
        if not isinstance(node, ast.expr):
            return False
        before = binding.nodes.setdefault(pattern.id, node)
        return ast.dump(before) == ast.dump(node)
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            _same_name(getattr(pattern, field), getattr(node, field), binding, changed)
            if IDENTIFIERS.get(type(pattern)) == field
            else _equal(getattr(pattern, field, None), getattr(node, field, None), binding, changed)
            for field in pattern._fields
            if field not in ("ctx", "kind", "type_comment")
        )
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(_equal(mine, other, binding, changed) for mine, other in zip(pattern, node, strict=True))
        )
    return type(pattern) is type(node) and pattern == node


def _same_name(mine: str | None, other: str | None, binding: Binding, changed: frozenset[str]) -> bool:
    if mine is None or other is None or mine not in changed:
        return mine == other
    taken = {name for before, name in binding.names.items() if before != mine}
    return other not in taken and binding.names.setdefault(mine, other) == other


def _substituted(tree: ast.AST, binding: Binding) -> ast.AST:
    """A replacement with the expressions and names that its pattern has met."""

    class Substitute(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.Name) and node.id in binding.nodes:
                return deepcopy(binding.nodes[node.id])
            field = IDENTIFIERS.get(type(node))
            if field:
                name = getattr(node, field)
                setattr(node, field, binding.names.get(name, name))
            return self.generic_visit(node)

    return Substitute().visit(deepcopy(tree))


def _replaced(text: str, node: ast.AST, after: list[ast.AST]) -> str:
    """The text with other code at a node, on as many lines."""
    lines = text.encode().splitlines(keepends=True)  # positions count bytes
    first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
    head = b"".join(lines[: node.lineno - 1]) + first[: node.col_offset]
    tail = last[node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    padding = "\n" * (node.end_lineno - node.lineno)
    if isinstance(node, ast.expr):
        code = f"({ast.unparse(after[0])}{padding})"
    else:
        written = [line for one in after for line in ast.unparse(one).splitlines()]
        indent = "\n" + " " * node.col_offset
        code = indent.join(written) + padding[len(written) - 1 :]
    return (head + code.encode() + tail).decode()
