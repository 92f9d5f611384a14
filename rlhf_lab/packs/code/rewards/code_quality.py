"""Static quality of the Python code in a response, computed from its syntax tree. The code is never run.

RLSQM (arXiv:2310.02368) rewards properties of C# unit tests that static analysis finds. This module checks properties
that apply to all Python code. It does not distinguish scopes: a name that is read anywhere counts as used everywhere.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence

import numpy as np

from rlhf_lab.core.types import RewardBatch
from rlhf_lab.packs.code.rewards.extraction import code_blocks, parsed
from rlhf_lab.packs.code.rewards.settings import CodeQuality
from rlhf_lab.training.run import Run

ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class CodeQualityReward:
    """Reward term of `CodeQuality`."""

    def __init__(self, settings: CodeQuality):
        self.settings = settings
        self.no_code = math.nan if settings.no_code is None else settings.no_code

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. The parts are "parses" and the fraction of each check; NaN without code that parses."""
        rows = [self._score_response(text) for text in responses]
        names = ("parses", *self.settings.checks)
        total_N = np.array([row[0] for row in rows], dtype=np.float64)
        parts_NC = np.array([row[1:] for row in rows], dtype=np.float64)
        parts_NC = parts_NC.reshape(len(rows), len(names))  # an array without rows has lost its columns
        return RewardBatch(total_N, dict(zip(names, parts_NC.T, strict=True)))

    def _score_response(self, text: str) -> list[float]:
        """Return the reward of a response, 1 if its code parses (else 0), and the fraction of each check."""
        unknown = [math.nan] * len(self.settings.checks)
        blocks = code_blocks(text)
        if not blocks:
            return [self.no_code, math.nan, *unknown]
        # the blocks are joined, so that a name defined in one block and read in another counts as used
        code = "\n".join(blocks)
        tree = parsed(code)
        if tree is None:
            return [0.0, 0.0, *unknown]
        fractions = [self._run_check(name, tree, code) for name in self.settings.checks]
        return [sum(fractions) / len(fractions), 1.0, *fractions]

    def _run_check(self, name: str, tree: ast.Module, code: str) -> float:
        if name == "line_length":
            lines = [line for line in code.splitlines() if line.strip()]
            return _fraction([len(line) <= self.settings.max_line for line in lines])
        return CHECKS[name](tree)


def used_imports(tree: ast.Module) -> float:
    """Return the fraction of imported names that are read."""
    names_read = _names_read(tree)
    imported = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if getattr(node, "module", "") == "__future__":  # these names are directives; no code reads them
            continue
        imported += [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    return _fraction([name in names_read for name in imported])


def used_names(tree: ast.Module) -> float:
    """Return the fraction of names assigned in functions that are read; names with a leading underscore are ignored."""
    names_read = _names_read(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assigned = set()
    for function in functions:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        assigned |= {name.id for name in names if isinstance(name.ctx, ast.Store) and not name.id.startswith("_")}
    return _fraction([name in names_read for name in assigned])


def documented(tree: ast.Module) -> float:
    """Return the fraction of functions and classes with a docstring; names with a leading underscore are ignored."""
    definitions = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    public = [node for node in definitions if not node.name.startswith("_")]
    return _fraction([ast.get_docstring(node) is not None for node in public])


def named_errors(tree: ast.Module) -> float:
    """Return the fraction of `except` clauses that name the error they catch."""
    clauses = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    return _fraction([clause.type is not None for clause in clauses])


def reachable(tree: ast.Module) -> float:
    """Return the fraction of statements that do not follow a return, raise, break or continue in the same block."""
    outcomes: list[bool] = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):  # the body of a lambda or conditional expression is a single node
                continue
            finished = False
            for statement in block:
                outcomes.append(not finished)
                finished = finished or isinstance(statement, ENDS)
    return _fraction(outcomes)


CHECKS: dict[str, Callable[[ast.Module], float]] = {
    "used_imports": used_imports,
    "used_names": used_names,
    "documented": documented,
    "named_errors": named_errors,
    "reachable": reachable,
}


def _names_read(tree: ast.Module) -> set[str]:
    """Return all names that the code reads, without distinguishing scopes."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def _fraction(outcomes: list[bool]) -> float:
    """Return the fraction of True values; 1 for an empty list, because nothing violates the check."""
    return sum(outcomes) / len(outcomes) if outcomes else 1.0


def build(settings: CodeQuality, run: Run) -> CodeQualityReward:
    del run
    return CodeQualityReward(settings)
