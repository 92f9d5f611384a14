"""The table of recipes in recipes/README.md, generated from the recipes' own comments: `make recipes`."""

from __future__ import annotations

import posixpath
from pathlib import Path

import yaml
from docs_site import results

from rlhf_lab.cli import recipe_list

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "recipes" / "README.md"
BEGIN, END = "<!-- made by `make recipes` -->\n", "<!-- end of the table -->\n"
HEAD = "| name | question | source | on 2 cores | what to expect |\n|---|---|---|---|---|\n"


def row(name: str, path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    says, question = recipe_list.header(text), yaml.safe_load(text)["question"]
    cost = recipe_list.cost_of(says)
    assert cost, f"{path}: the line Cost begins with about … minutes"
    result = results.page_of(name)
    accepted = f"; [accepted result](../{result.relative_to(ROOT).as_posix()})" if result else ""
    link = posixpath.relpath(path.relative_to(ROOT).as_posix(), "recipes")
    cells = [f"[`{name}`]({link})", question, says["source"], str(cost), says["expect"] + accepted]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table() -> str:
    parts = []
    for group, recipes in recipe_list.grouped().items():
        rows = "".join(row(name, path) for name, path in recipes.items())
        parts.append(f"### {group}\n\n{HEAD}{rows}")
    return "\n".join(parts)


def page(text: str) -> str:
    """Return the page with a new table."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
