"""Statements of the documentation and the docstrings about the layout are true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from test_layers import LEVEL

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rlhf_lab"
CODE = ROOT / "docs" / "code.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "recipes/README.md", "launchers/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(page for pack in (PACKAGE / "packs").glob("*/") for page in (ROOT / "docs" / pack.name).glob("*.md")),
]
INITS = sorted(PACKAGE.rglob("__init__.py"))
PATH = re.compile(r"(?<![\w./:-])((?:[a-z_]+/)+[a-z_]+\.py)\b")
"""A Python file with a directory in front of it, such as `losses/preference.py`."""
FOLDER = re.compile(r"(?<![\w./:-])((?:rlhf_lab|packs|tests|docs|conf|recipes)/(?:[a-z_0-9]+/)*)(?![\w*<{])")
"""A directory of the repository, such as `tests/lint/`."""
OF_A_PLUG_IN = ("brevity_plugin/",)


def exists(path: str, *folders: Path) -> bool:
    return any((directory / path).exists() for directory in (ROOT, PACKAGE, ROOT / "tests", *folders))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_directories_named_in_the_documentation_exist(page):
    text = page.read_text(encoding="utf-8")
    named = {*PATH.findall(text), *FOLDER.findall(text)}
    assert not [path for path in sorted(named) if not path.startswith(OF_A_PLUG_IN) and not exists(path)]


def test_files_named_in_docstrings_exist():
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                named = PATH.findall(ast.get_docstring(node) or "")
                wrong += [f"{file.relative_to(ROOT)}: {path}" for path in named if not exists(path, file.parent)]
    assert not wrong


def docstring(init: Path) -> str:
    return ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""


def sub_packages(directory: Path) -> set[str]:
    return {path.parent.name for path in directory.glob("*/__init__.py")}


def tree() -> list[str]:
    """Packages and modules that the tree of docs/code.md lists, from top to bottom, without trailing slashes."""
    lines = CODE.read_text(encoding="utf-8").split("```\nrlhf_lab/\n")[1].split("```")[0].splitlines()
    names = [re.split(r" {2,}", line.strip())[0] for line in lines if line.startswith("  ")]
    return [name.rstrip("/") for cell in names for name in cell.split(" ")]


def test_the_tree_lists_every_package():
    assert sorted(tree()) == sorted([*sub_packages(PACKAGE), "main.py"])


def test_the_tree_is_in_the_order_of_the_layers():
    levels = [LEVEL[name.removesuffix(".py")] for name in tree()]
    assert levels == sorted(levels), "a package stands above one that it may import; see LAYERS in test_layers.py"


def test_the_page_on_the_code_has_a_section_per_pack_that_names_its_sub_packages():
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", CODE.read_text(encoding="utf-8"), re.M | re.S))
    assert {title.lower() for title in sections} == sub_packages(PACKAGE / "packs")
    for title, text in sections.items():
        named = set(re.findall(r"`(\w+)/`", text))
        missing = sub_packages(PACKAGE / "packs" / title.lower()) - named
        assert not missing, f"{title} does not name {sorted(missing)}"


def test_every_pack_has_a_test_and_pages():
    for name in sub_packages(PACKAGE / "packs"):
        assert (ROOT / "tests" / "unit" / name / f"test_{name}_pack.py").is_file(), name
        assert any((ROOT / "docs" / name).glob("*.md")), name


@pytest.mark.parametrize("init", INITS, ids=lambda init: init.parent.relative_to(ROOT).as_posix())
def test_every_package_says_what_it_is_for_and_where_to_begin(init):
    text = docstring(init)
    assert len(text.splitlines()) >= 2, "say what the package is for, and which module to read first"
    if init.parent not in (PACKAGE, PACKAGE / "packs"):  # docs/code.md has the tree; packs may be deleted
        missing = sorted(name for name in sub_packages(init.parent) if f"{name}/" not in text)
        assert not missing, f"it does not name its sub-packages {missing}"


@pytest.mark.parametrize("init", INITS, ids=lambda init: init.parent.relative_to(ROOT).as_posix())
def test_a_package_names_only_files_and_directories_that_it_has(init):
    """A name without a path is a file of the package; a path may also start at the package or the repository."""
    text = docstring(init)
    files = re.findall(r"(?<![\w./])[a-z_0-9]+\.py\b", text)
    absent = [name for name in files if not (init.parent / name).is_file()]
    folders = re.findall(r"(?<![\w./:`-])`?((?:[a-z_0-9]+/)+)(?![\w*])", text)
    absent += [name for name in folders if not any((base / name).is_dir() for base in (init.parent, PACKAGE, ROOT))]
    assert not absent, f"it names {absent}"


def test_a_class_name_stands_for_one_class():
    files: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    shared = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert not shared, "a reader who searches for a class finds several; give each a name of its own"
