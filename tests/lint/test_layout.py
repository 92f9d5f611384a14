"""What the documentation and the docstrings say of the layout is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rlhf_lab"
PAGES = [ROOT / "README.md", ROOT / "recipes" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(r"(?<![\w./:-])((?:[a-z_]+/)+[a-z_]+\.py)\b")
"""A Python file with at least one folder in front of it, such as `losses/preference.py`."""
OF_A_PLUG_IN = ("brevity_plugin/",)


def exists(path: str, *folders: Path) -> bool:
    return any((folder / path).is_file() for folder in (ROOT, PACKAGE, ROOT / "tests", *folders))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_the_documentation_exist(page):
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    assert not [path for path in sorted(named) if not path.startswith(OF_A_PLUG_IN) and not exists(path)]


def test_files_named_in_docstrings_exist():
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                named = PATH.findall(ast.get_docstring(node) or "")
                wrong += [f"{file.relative_to(ROOT)}: {path}" for path in named if not exists(path, file.parent)]
    assert not wrong


def test_the_tree_lists_every_package():
    text = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    tree = text[text.index("```\nrlhf_lab/\n") :].split("```")[1]
    listed = {name.rstrip("/") for line in tree.split("\n") for name in re.findall(r"^ {2}(.*?) {2,}", line)}
    listed = {name.rstrip("/") for names in listed for name in names.split(" ")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert listed == packages | {"main.py"}


def test_every_package_says_what_it_is_for_and_where_to_begin():
    for file in PACKAGE.glob("**/__init__.py"):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        assert len(text.splitlines()) >= 2, file
        beside = {path.name for path in file.parent.glob("**/*.py")} | {path.name for path in PACKAGE.rglob("*.py")}
        named = set(re.findall(r"\b[a-z_]+\.py\b", text))
        assert named <= beside, f"{file}: {named - beside}"
