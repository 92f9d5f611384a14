"""Static quality of Python code in a reply: read from its syntax tree, never run.

RLSQM (arXiv:2310.02368) rewards properties of C# unit tests that a static analysis finds. Here are those that any
Python code has. Left out: scopes are not told apart, so a name that is read anywhere counts as used everywhere.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from rlhf_lab.core.types import RewardBatch
from rlhf_lab.packs.code.rewards.settings import CodeQuality
from rlhf_lab.training.run import Run

BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("", "py", "python", "python3")
ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class CodeQualityReward:
    """See `CodeQuality`."""

    def __init__(self, settings: CodeQuality):
        self.settings = settings
        self.no_code = math.nan if settings.no_code is None else settings.no_code

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts: "parses", and each check's share; NaN where there is no code, or none that parses."""
        rows = [self._score_reply(text) for text in responses]
        names = ("parses", *self.settings.checks)
        total_N = np.array([row[0] for row in rows], dtype=np.float64)
        parts_NC = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), len(names))
        return RewardBatch(total_N, dict(zip(names, parts_NC.T, strict=True)))

    def _score_reply(self, text: str) -> list[float]:
        """The reward of a reply, whether its code parses, and each check's share."""
        unknown = [math.nan] * len(self.settings.checks)
        blocks = [code for language, code in BLOCK.findall(text) if language.lower() in PYTHON]
        if not blocks:
            return [self.no_code, math.nan, *unknown]
        code = "\n".join(blocks)
        tree = parsed(code)
        if tree is None:
            return [0.0, 0.0, *unknown]
        shares = [self._run_check(name, tree, code) for name in self.settings.checks]
        return [sum(shares) / len(shares), 1.0, *shares]

    def _run_check(self, name: str, tree: ast.Module, code: str) -> float:
        if name == "line_length":
            lines = [line for line in code.splitlines() if line.strip()]
            return _share([len(line) <= self.settings.max_line for line in lines])
        return CHECKS[name](tree)


def parsed(code: str) -> ast.Module | None:
    """The syntax tree, or None for text that is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of the reply are not the lab's
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def used_imports(tree: ast.Module) -> float:
    """Share of imported names that are read."""
    names_read = _names_read(tree)
    imported = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if getattr(node, "module", "") == "__future__":  # no code reads those names
            continue
        imported += [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    return _share([name in names_read for name in imported])


def used_names(tree: ast.Module) -> float:
    """Share of names assigned inside functions that are read; names with a leading underscore do not count."""
    names_read = _names_read(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assigned = [
        node.id
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not node.id.startswith("_")
    ]
    return _share([name in names_read for name in dict.fromkeys(assigned)])  # each name once


def documented(tree: ast.Module) -> float:
    """Share of functions and classes that have a docstring; names with a leading underscore need none."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    public = [node for node in definitions if not node.name.startswith("_")]
    return _share([ast.get_docstring(node) is not None for node in public])


def named_errors(tree: ast.Module) -> float:
    """Share of `except` clauses that say what they catch."""
    return _share([node.type is not None for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)])


def reachable(tree: ast.Module) -> float:
    """Share of statements that do not follow a return, raise, break or continue of the same block."""
    outcomes: list[bool] = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):  # the body of a lambda or a conditional expression is no block
                continue
            ended = False
            for statement in block:
                outcomes.append(not ended)
                ended = ended or isinstance(statement, ENDS)
    return _share(outcomes)


CHECKS: dict[str, Callable[[ast.Module], float]] = {
    "used_imports": used_imports,
    "used_names": used_names,
    "documented": documented,
    "named_errors": named_errors,
    "reachable": reachable,
}


def _names_read(tree: ast.Module) -> set[str]:
    """Names that the code reads anywhere; scopes are not told apart."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _share(outcomes: list[bool]) -> float:
    """Share of good outcomes; 1 where there is nothing to check."""
    return sum(outcomes) / len(outcomes) if outcomes else 1.0


def build(settings: CodeQuality, run: Run) -> CodeQualityReward:
    del run
    return CodeQualityReward(settings)
