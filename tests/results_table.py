"""The index of accepted results, docs/results/README.md, generated from the pages themselves: `make recipes`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from docs_site import results
from docs_site.page import plain, table

from rlhf_lab.cli.results import CODE_LINK
from rlhf_lab.studies.claims import CONFIRMED, REFUTED, SMALLER, VERDICTS

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PAGE = RESULTS / "README.md"
DECIDED = (CONFIRMED, REFUTED, SMALLER)
GROUPS = {
    "Every claim is decided": "",
    "Some claims are decided": "",
    "No claim is decided": "The pages say how many seeds would decide their claims.",
    "Single comparisons": "These pages state no claims; the interval of a run is over prompts, not over training runs.",
}
"""Heading → sentence below it."""
# Verdicts about differences are bold; those about correlations and rates are not.
VERDICT = re.compile(rf"^\|.*\| (?:\*\*)?({'|'.join(VERDICTS)})(?:\*\*)? \|", re.M)


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
    figure = f"[figure]({svg.name})" if svg.is_file() else ""
    made = "recorded" if CODE_LINK.search(text) else "not recorded"
    return [f"[{plain(recipe.question)}]({file.name})", verdicts, plain(found.verdict), found.seeds, figure, made]


def page() -> str:
    """Return the text of the index."""
    rows: dict[str, list[list[str]]] = {heading: [] for heading in GROUPS}
    shown = {PAGE.name}
    recipes = results.recipes()
    for recipe in recipes.values():
        found = results.result_of(recipe.name)
        # A recipe and a study may have the same last name; the page is then that of the study.
        is_of_study = f"study/{recipe.name}" in recipes
        if found and not is_of_study:
            file = RESULTS / Path(found.file).name
            shown.add(file.name)
            text = file.read_text(encoding="utf-8")
            rows[group_of(claims(text))].append(row(recipe, found, file, text))
    headings = ["question", "claims", "answer", "seeds", "", "code"]
    parts = [
        "# Results\n",
        "Accepted results of recipes. Each page has its command, its tables, and what its intervals cover. "
        "`code` says if a page names the commit and the definitions that made it; "
        "`rlhf-lab results check` compares those with the present code. Pages without that record were made "
        "by versions 0.6 to 0.12, and do not say if their claims were written before the first look at the numbers. "
        "This page is made by `make recipes`.\n",
    ]
    for heading, sentence in GROUPS.items():
        if rows[heading]:
            parts += [f"## {heading}\n", *([f"{sentence}\n"] if sentence else []), table(headings, rows[heading])]
    others = sorted(path.name for path in RESULTS.glob("*.md") if path.name not in shown)
    titles = {name: (RESULTS / name).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name in others}
    parts += ["## Measurements of the package itself\n", "".join(f"- [{titles[name]}]({name})\n" for name in others)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
