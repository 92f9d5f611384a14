"""Numbers that README and docs quote from a page of results stand on that page, possibly with more digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
LINK = re.compile(r"results/((?:archive/)?\w+)\.md")
NO_MEASUREMENTS = {"gpu"}
"""Pages that list features and have no numbers to quote."""
QUOTED = re.compile(r"(?<![\w./-])\d*\.\d+(?![\w/])")
"""A decimal number of a sentence. Whole numbers are mostly counts and settings."""
ON_PAGE = re.compile(r"(?<![\w.])\d*\.?\d+")


def documents() -> list[Path]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if not {"results", "design"} & set(path.parts)]
    return [ROOT / "README.md", *sorted(pages)]


def quotes(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (paragraph, list item or table row; the pages of results that it links)."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=[-|] )", text):
        pages = [page for page in LINK.findall(block) if page not in NO_MEASUREMENTS]
        if pages:
            yield block, pages


def missing(block: str, page: str) -> list[str]:
    """Return the decimal numbers of a block that are not on the page: neither rounded nor as a percentage."""
    found = [float(number) for number in ON_PAGE.findall(page)]
    lost = []
    for number in QUOTED.findall(re.sub(r"\([^)]*\.md[^)]*\)", "", block)):
        digits = len(number.partition(".")[2])
        stands = any(round(value, digits) == float(number) for value in (*found, *(value / 100 for value in found)))
        if not stands:
            lost.append(number)
    return lost


def test_quoted_numbers_stand_on_the_page_that_is_linked():
    checked, problems = 0, []
    for document in documents():
        for block, pages in quotes(document.read_text()):
            page = "\n".join((RESULTS / f"{name}.md").read_text() for name in pages)
            checked += len(QUOTED.findall(block))
            problems += [f"{document.relative_to(ROOT)}: {number} is not on {pages}" for number in missing(block, page)]
    assert not problems
    assert checked >= 40


def test_another_number_is_noticed():
    """.46 is .462 rounded, and .95 is 95 %; .47 is neither."""
    page = "gold turns at 0.462 nats, in 95 % of the seeds"
    assert missing("It turns at .46 nats, with probability .95.", page) == []
    assert missing("It turns at .47 nats.", page) == [".47"]
