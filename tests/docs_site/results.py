"""Accepted results: the recipe, the verdict and the seeds of each page of docs/results/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from docs_site.page import ROOT, Page, code, plain, table
from rlhf_lab.cli import recipe_list
from rlhf_lab.config import inventory

RESULTS = ROOT / "docs" / "results"
ARCHIVE = RESULTS / "archive"
"""Results of versions 0.6 to 0.12, which record neither their code nor when their claims were written."""
VERDICT_LENGTH = 300


@dataclass(frozen=True)
class Recipe:
    """What a recipe says of itself.

    Attributes:
        name: as in `+recipe=name`.
        file: its file, from the root of the repository.
        text: content of the file.
        question: the question that it answers.
        header: comment at its start, by field: source, command, cost, expect.
        algorithms: options of `algorithm` that it runs; a study may compare several.
    """

    name: str
    file: str
    text: str
    question: str
    header: Mapping[str, str]
    algorithms: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """Accepted result of a recipe.

    Attributes:
        file: page of the result, from the root of the repository.
        verdict: what the page concludes, in one or a few sentences.
        seeds: number of training runs that differ only by chance, as the page states it.
    """

    file: str
    verdict: str
    seeds: str


@cache
def recipes() -> dict[str, Recipe]:
    """Return name → recipe, of all packs."""
    return {name: _read(name) for name in inventory.recipes()}


def _read(name: str) -> Recipe:
    path = inventory.recipes()[name]
    text = path.read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    choices = [next(iter(choice.items())) for choice in values.get("defaults", []) if isinstance(choice, dict)]
    algorithms = [value for choice, value in choices if choice == "override /algorithm"]
    algorithms += (values.get("study") or {}).get("sweep", {}).get("algorithm", [])
    file = path.resolve().relative_to(ROOT).as_posix()
    unique = tuple(dict.fromkeys(algorithms))
    return Recipe(name, file, text, values["question"], recipe_list.header(text), unique)


def page_of(name: str) -> Path | None:
    """Return the page of a recipe's accepted result, or None. A page in docs/results replaces one in the archive."""
    files = [directory / f"{name.rpartition('/')[2]}.md" for directory in (RESULTS, ARCHIVE)]
    return next((file for file in files if file.is_file()), None)


@cache
def result_of(name: str) -> Result | None:
    """Return the accepted result of a recipe, or None."""
    page = page_of(name)
    if page is None:
        return None
    text = page.read_text(encoding="utf-8")
    return Result(page.relative_to(ROOT).as_posix(), verdict(text), seeds(text))


def verdict(text: str) -> str:
    """Return the conclusion of a result's page: the sentence in bold, or the start of the first paragraph.

    Of a paragraph, whole sentences up to `VERDICT_LENGTH` characters are returned, at least one.
    """
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    # A paragraph that begins with the command, a table or a line of the run's own metadata concludes nothing.
    prose = next(paragraph for paragraph in paragraphs if re.match(r"\*\*|[A-ZΑ-Ω]", paragraph))
    bold = re.match(r"\*\*(.+?)\*\*", prose)
    if bold:
        return bold[1]
    conclusion, *others = re.split(r"(?<=[.!?]) (?=[A-ZΑ-Ω])", prose)
    for sentence in others:
        if len(conclusion) + len(sentence) >= VERDICT_LENGTH:
            break
        conclusion = f"{conclusion} {sentence}"
    return conclusion


def seeds(text: str) -> str:
    """Return the number of seeds that a result's page states; empty if it states none."""
    several = re.search(r"\b(\d+) seeds \(", text)
    if several:
        return several[1]
    listed = re.search(r"seed=(\d+(?:,\d+)+)", text)
    if listed:
        return str(len(listed[1].split(",")))
    return "1" if re.search(r"^seed \d+;|One seed", text, re.M) else ""


def recipe_page(recipe: Recipe) -> Page:
    """Return the page of one recipe."""
    rows = [[field, plain(recipe.header[field])] for field in ("source", "cost", "expect")]
    rows += [["accepted result", outcome(recipe)]] if result_of(recipe.name) else []
    algorithms = [f"[{name}](@algorithms/{name}.md)" for name in recipe.algorithms]
    rows += [["algorithm", ", ".join(algorithms)]] if algorithms else []
    text = (
        f"# {recipe.name}\n\n{plain(recipe.question)}\n\n```\n{recipe.header['command']}\n```\n\n"
        + table(["", ""], rows)
        + f"\n{code(recipe.file)}:\n\n```yaml\n{recipe.text}```\n"
    )
    return Page(f"reference/recipes/{recipe.name}.md", recipe.name, text)


def outcome(recipe: Recipe) -> str:
    """Return the verdict of a recipe's accepted result, with a link to its page; empty if there is none."""
    result = result_of(recipe.name)
    return f"[{plain(result.verdict)}](/{result.file})" if result else ""


def recipe_link(recipe: Recipe) -> str:
    return f"[`{recipe.name}`](/{recipe.file})"
