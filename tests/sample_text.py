"""Select places of the project's text at random, for a reader who has not seen the project.

`python tests/sample_text.py --seed 0` prints 30 docstrings, 10 messages of errors, 10 paragraphs of documentation and
10 questions of recipes, each with its location. The reader sees the text alone and marks what he or she did not
understand at first reading (outcomes: docs/design/042-plain-english.md).
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from mirror import ROOT, SourceFile

COUNTS = {"docstring": 30, "message": 10, "paragraph": 10, "question": 10}
MIN_WORDS = 6
"""Minimum number of words of a place. A shorter text is a label, such as a title of a column."""
Place = tuple[str, str]
"""Location and text."""


def docstrings(file: SourceFile) -> Iterator[Place]:
    """Docstrings of modules, classes, functions and attributes, without their `Args` and `Attributes` sections."""
    for node in file.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = re.split(r"\n\s*(?:Args|Attributes|Returns|Raises):\n", node.value.value)[0]
            yield f"rlhf_lab/{file.path}:{node.lineno}", text


def messages(file: SourceFile) -> Iterator[Place]:
    """Texts of exceptions that are raised, with `{…}` in place of values."""
    for node in file.nodes:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield f"rlhf_lab/{file.path}:{node.lineno}", literal_text(node.exc.args[0])


def literal_text(node: ast.expr) -> str:
    """Text of a string or f-string; empty for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [value.value if isinstance(value, ast.Constant) else "{…}" for value in node.values]
        return "".join(map(str, parts))
    return ""


def paragraphs(path: Path) -> Iterator[Place]:
    """Paragraphs of prose, without headings, tables, lists and code."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        if block.strip() and not re.match(r"\s*(#|\||[-*] |\d+\. |<|!\[)", block):
            yield str(path.relative_to(ROOT)), block


def questions(path: Path) -> Iterator[Place]:
    yield str(path.relative_to(ROOT)), str(yaml.safe_load(path.read_text(encoding="utf-8")).get("question", ""))


def places() -> dict[str, list[Place]]:
    """All places by kind, in the order of their files."""
    package = ROOT / "rlhf_lab"
    files = [SourceFile(path.relative_to(package), path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))]
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if not {"design", "results"} & set(path.parts)]
    recipes = [*sorted((ROOT / "recipes").rglob("*.yaml")), *sorted(package.glob("packs/*/recipes/**/*.yaml"))]
    found = {
        "docstring": [place for file in files for place in docstrings(file)],
        "message": [place for file in files for place in messages(file)],
        "paragraph": [place for path in [ROOT / "README.md", *pages] for place in paragraphs(path)],
        "question": [place for path in recipes for place in questions(path)],
    }
    return {kind: [place for place in each if len(place[1].split()) >= MIN_WORDS] for kind, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    number = 0
    for kind, candidates in places().items():
        for location, text in random.Random(f"{seed} {kind}").sample(candidates, COUNTS[kind]):
            number += 1
            print(f"{number}. {kind}, {location}\n\n   {' '.join(text.split())}\n")


if __name__ == "__main__":
    main()
