"""The page from a paper to the recipes that cite it, their accepted results and verdicts."""

from __future__ import annotations

import re

from docs_site.page import Page, plain, table
from docs_site.results import Recipe, outcome, recipe_link, recipes, result_of

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def citations() -> dict[str, list[Recipe]]:
    """Return arXiv id → the recipes whose files cite it, in the order of the ids."""
    cited: dict[str, list[Recipe]] = {}
    for recipe in recipes().values():
        for number in dict.fromkeys(ARXIV.findall(recipe.text)):
            cited.setdefault(number, []).append(recipe)
    return dict(sorted(cited.items()))


def subject(number: str, recipe: Recipe) -> str:
    """Return what a recipe takes from a paper: the part of its line "Source" that cites it, without the ids.

    A paper that only another comment of the recipe cites has no subject.
    """
    for part in recipe.header["source"].split(";"):
        if number in part:
            without_ids = re.sub(r",? ?arXiv:[\d.]+(, (section|eq\.|table) [\d.]+)*", "", part)
            return re.sub(r" ?\( *\)", "", without_ids).strip(" ,:")
    return ""


def page() -> Page:
    """Return the page *paper → recipe → result → verdict*."""
    cited = citations()
    rows = []
    for number, citing in cited.items():
        paper = f"[{number}](https://arxiv.org/abs/{number})"
        for recipe in citing:
            rows.append([paper, plain(subject(number, recipe)), recipe_link(recipe), outcome(recipe)])
            paper = ""
    decided = {recipe.name for citing in cited.values() for recipe in citing if result_of(recipe.name)}
    text = (
        f"# From papers to results\n\nThe recipes cite {len(cited)} papers on arXiv. This page lists what each recipe "
        f"takes from a paper, and the verdict of its accepted result; {len(decided)} of these recipes have one. "
        "A verdict holds for the model and the data of the recipe, which are small; it is none on the paper.\n\n"
        + table(["arXiv", "taken from it", "recipe", "accepted result"], rows)
    )
    return Page("results/papers.md", "From papers to results", text)
