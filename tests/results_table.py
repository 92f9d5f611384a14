"""The index of accepted results, docs/results/README.md, generated from the pages themselves: `make recipes`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from docs_site import results
from docs_site.page import plain, table

from rlhf_lab.studies.claims import CONFIRMED, REFUTED, SMALLER, VERDICTS

RESULTS = results.RESULTS
PAGE = RESULTS / "README.md"
DECIDED = (CONFIRMED, REFUTED, SMALLER)
GROUPS = {
    "Every claim is decided": "These pages are the gallery. Those of the next sections leave something open.",
    "Some claims are decided": "",
    "No claim is decided": "The pages say how many seeds would decide their claims.",
    "Single comparisons": "These pages state no claims. The interval of a run is over prompts, that of a search over "
    "training runs.",
}
"""Heading → sentence below it."""
HEADINGS = ["question", "claims", "answer", "seeds", ""]
# Verdicts about differences are bold; those about correlations and rates are not.
VERDICT = re.compile(rf"^\|.*\| (?:\*\*)?({'|'.join(VERDICTS)})(?:\*\*)? \|", re.M)


@dataclass(frozen=True)
class Row:
    """Row of a page of results.

    Attributes:
        file: the page.
        group: heading of the table that has the row.
        cells: one text per entry of `HEADINGS`.
    """

    file: Path
    group: str
    cells: list[str]


def claims(text: str) -> Counter[str]:
    """Return verdict → number of claims of a page with that verdict."""
    return Counter(VERDICT.findall(text))


def group_of(counts: Counter[str]) -> str:
    """Return the heading under which a page with these verdicts stands."""
    every, some, none, single = GROUPS
    decided = sum(counts[verdict] for verdict in DECIDED)
    if not counts:
        return single
    if decided == counts.total():
        return every
    return some if decided else none


def row(recipe: results.Recipe, found: results.Result, file: Path, text: str) -> list[str]:
    counts = claims(text)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    svg = file.with_suffix(".svg")
    figure = f"[figure]({svg.relative_to(RESULTS).as_posix()})" if svg.is_file() else ""
    link = f"[{plain(recipe.question)}]({file.relative_to(RESULTS).as_posix()})"
    return [link, verdicts, plain(found.verdict), found.seeds, figure]


def rows_of_recipes() -> tuple[list[Row], list[Row]]:
    """Return the rows of pages that record their code, and those of the archive."""
    recorded: list[Row] = []
    archived: list[Row] = []
    recipes = results.recipes()
    for recipe in recipes.values():
        found = results.result_of(recipe.name)
        # A recipe and a study may have the same last name; the page is then that of the study.
        is_of_study = f"study/{recipe.name}" in recipes
        if found and not is_of_study:
            file = results.ROOT / found.file
            text = file.read_text(encoding="utf-8")
            rows = archived if file.parent == results.ARCHIVE else recorded
            rows.append(Row(file, group_of(claims(text)), row(recipe, found, file, text)))
    return recorded, archived


def sections(rows: list[Row], level: str) -> list[str]:
    """Return a heading and a table for each group that has rows."""
    parts = []
    for heading, sentence in GROUPS.items():
        cells = [row.cells for row in rows if row.group == heading]
        if cells:
            parts += [f"{level} {heading}\n", *([f"{sentence}\n"] if sentence else []), table(HEADINGS, cells)]
    return parts


def page() -> str:
    """Return the text of the index."""
    recorded, archived = rows_of_recipes()
    shown = {row.file for row in recorded} | {PAGE}
    others = sorted(path for path in RESULTS.glob("*.md") if path not in shown)
    titles = [(path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "), path.name) for path in others]
    parts = [
        "# Results\n",
        "Accepted results of recipes. A page has its command, its tables, what its intervals cover, when its claims "
        "were written, the values of each seed, and the commit and definitions that made it. "
        "`rlhf-lab results check` compares those with the present code. This page is made by `make recipes`.\n",
        *sections(recorded, "##"),
        "## Measurements of the package itself\n",
        "".join(f"- [{title}]({name})\n" for title, name in titles),
        "## Archive\n",
        "These pages were made by versions 0.6 to 0.12. They do not say by which code, nor if their claims were "
        "written before the first look at the numbers. A page leaves the archive when its recipe is run again.\n",
        *sections(archived, "###"),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
