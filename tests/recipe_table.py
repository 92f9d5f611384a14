"""The table of recipes in recipes/README.md, generated from the recipes' own comments: `make recipes`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

import yaml

from rlhf_lab.config import inventory

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "recipes" / "README.md"
BEGIN, END = "<!-- made by `make recipes` -->\n", "<!-- end of the table -->\n"
NUMBERS = {"a": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NUMBERS |= {"twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}
HEAD = "| name | question | source | on 2 cores | what to expect |\n|---|---|---|---|---|\n"


def header(text: str) -> dict[str, str]:
    """Map each field of the comment at the start of a recipe to its text. A line without a field continues it."""
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        match = re.match(r"# (\w+): +(.*)", line)
        if match:
            name = match[1].lower()
        fields[name] = f"{fields.get(name, '')} {match[2] if match else line[1:].strip()}".strip()
    return fields


def digits(number: str) -> str:
    """A number in words as digits: thirty-five → 35."""
    if number.isdigit():
        return number
    return str(sum(NUMBERS[word] for word in number.split("-")))


def row(name: str, path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    says, question = header(text), yaml.safe_load(text)["question"]
    minutes = re.match(r"about ([\w-]+) minutes?", says["cost"])
    quick = re.search(r"study\.size=quick:? (?:about )?(\w+)", says["cost"])
    assert minutes, f"{path}: the line Cost begins with about … minutes"
    cost = f"{digits(minutes[1])} min" + (f", quick {digits(quick[1])}" if quick else "")
    result = ROOT / "docs" / "results" / f"{path.stem}.md"
    accepted = f"; [accepted result](../docs/results/{result.name})" if result.is_file() else ""
    link = posixpath.relpath(path.relative_to(ROOT).as_posix(), "recipes")
    cells = [f"[`{name}`]({link})", question, says["source"], cost, says["expect"] + accepted]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table() -> str:
    recipes = inventory.recipes().items()
    single = [row(name, path) for name, path in recipes if not name.startswith("study/")]
    studies = [row(name, path) for name, path in recipes if name.startswith("study/")]
    parts = [f"### {title}\n\n{HEAD}" + "".join(rows) for title, rows in (("Runs", single), ("Studies", studies))]
    return "\n".join(parts)


def page(text: str) -> str:
    """Return the page with a new table."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
