"""Every library that is imported is declared in pyproject.toml, and every declared one is used."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTERS = {"import_module", "importorskip", "find_spec", "import_optional"}
"""Functions whose first argument is the name of a module."""
ELSEWHERE = {
    "openenv": "an environment server of the user",
    "verifiers": "an environment of the user",
    "parler_tts": "runs in an environment that `parler setup` creates",
    "vllm": "runs in an environment that `vllm setup` creates",
    "parselmouth": "the module of praat-parselmouth",
    "no_such_library": "a name in a test of the message for missing libraries",
}
"""Module that pyproject.toml need not declare → why."""
NOT_IMPORTED = {
    "hydra-joblib-launcher": "Hydra finds it by its entry point",
    "hydra-submitit-launcher": "Hydra finds it by its entry point",
    "altair": "tests read its schema",
    "anthropic": "the judge of this name imports it by the name in its class",
    "openai": "the judge of this name imports it by the name in its class",
    "praat-parselmouth": "tests import it as parselmouth",
    "pytest-xdist": "a plug-in of pytest",
    "ruff": "a command",
    "mypy": "a command",
    "types-pyyaml": "types for mypy",
    "pandas-stubs": "types for mypy",
    "pre-commit": "a command",
    "ipykernel": "nbclient starts the kernel by its name",
    "mkdocs-material": "mkdocs finds the theme by its name",
    "tensorboard": "torch imports it",
}
"""Declared distribution that no file has to import → why."""


def distribution(requirement: str) -> str:
    """Return the normalised name of a requirement such as "lm_eval>=0.4.13"."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]).lower()


HAS_ALL_PACKS = {"agents", "code", "judging", "speech"} <= {
    path.name for path in (ROOT / "rlhf_lab" / "packs").iterdir()
}
needs_all_packs = pytest.mark.skipif(not HAS_ALL_PACKS, reason="libraries of deleted packs stay declared")
DECLARED = {distribution(text) for text in PROJECT["dependencies"]}
OPTIONAL = {distribution(text) for texts in PROJECT["optional-dependencies"].values() for text in texts}


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in IMPORTERS:
                yield str(node.args[0].value).partition(".")[0]


def libraries(directory: str) -> dict[str, list[str]]:
    """Return imported module that is neither of Python nor of this repository → files that import it."""
    tests = ROOT / "tests"
    own = {"rlhf_lab", *(path.stem for path in tests.rglob("*.py")), *(path.name for path in tests.iterdir())}
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / directory).rglob("*.py")):
        for name in imported(path):
            if name not in own and name not in sys.stdlib_module_names:
                found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return found


def distributions_of(module: str) -> set[str]:
    """Return the distributions that provide a module; for one that is not installed, the module's own name."""
    return {distribution(name) for name in packages_distributions().get(module, [module])}


@pytest.mark.parametrize("directory", ["rlhf_lab", "tests"])
def test_every_imported_library_is_declared(directory: str) -> None:
    found = libraries(directory)
    assert {"torch", "numpy"} < set(found)
    undeclared = {
        module: files[0]
        for module, files in found.items()
        if module not in ELSEWHERE and not distributions_of(module) & (DECLARED | OPTIONAL)
    }
    assert not undeclared, f"imported but not declared in pyproject.toml: {undeclared}"


@needs_all_packs
def test_every_declared_library_is_imported() -> None:
    used = set().union(*(distributions_of(module) for name in ("rlhf_lab", "tests") for module in libraries(name)))
    unused = (DECLARED | OPTIONAL) - used - set(NOT_IMPORTED)
    assert not unused, f"declared in pyproject.toml but imported by no file: {sorted(unused)}"


@needs_all_packs
def test_the_exceptions_are_exceptions() -> None:
    modules = libraries("rlhf_lab").keys() | libraries("tests").keys()
    assert set(ELSEWHERE) <= modules
    assert set(NOT_IMPORTED) <= DECLARED | OPTIONAL
