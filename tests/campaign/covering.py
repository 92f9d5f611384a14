"""Frequencies with which intervals hold the truth: tallies, tables and the sentences about them."""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rlhf_lab.stages.manifest import git_sha
from rlhf_lab.statistics.estimates import Estimate

SEEDS = (3, 5, 10)
BAR = (0.93, 0.97)
BAR_WORDS = ".93–.97"


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: its heading.
        about: what was simulated, a paragraph.
        header: names of the columns; the first `labels` of them name the row.
        rows: cells as text.
        findings: what it shows, sentences for the head of the page.
        is_coverage: whether the cells are coverages, which have a bar.
    """

    name: str
    about: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    findings: tuple[str, ...] = ()
    is_coverage: bool = False


@dataclass
class Tally:
    """Counts of intervals that hold the truth, by row and column of a table."""

    model_copies: dict[tuple[str, ...], list[bool]] = field(default_factory=lambda: defaultdict(list))

    def add(self, key: Sequence[str], interval: Estimate, truth: float) -> None:
        slack = 1e-12  # a bound may be the truth itself, as 0 is of a rate
        self.model_copies[tuple(key)].append(interval.low - slack <= truth <= interval.high + slack)

    def coverage(self, key: Sequence[str]) -> float:
        outcomes = self.model_copies[tuple(key)]
        return sum(outcomes) / len(outcomes)

    def cell(self, key: Sequence[str]) -> str:
        return share(self.coverage(key))


def share(rate: float) -> str:
    """Format a fraction as .948."""
    return f"{rate:.3f}".removeprefix("0")


def span(rates: Sequence[float]) -> str:
    """Return the smallest and the largest fraction."""
    return f"{share(min(rates))}–{share(max(rates))}"


def inside(rates: Sequence[float]) -> str:
    """Describe the number of these coverages that lie in the bar."""
    count = sum(BAR[0] <= rate <= BAR[1] for rate in rates)
    return f"{count} of {len(rates)}"


def error_of_share(rate: float, count: int) -> float:
    """Return the standard error of a fraction that was counted over this number of simulated studies."""
    return math.sqrt(rate * (1 - rate) / count)


def section(table: Table) -> list[str]:
    """Return a table as lines of Markdown, under its heading."""
    rows = [[*row[: table.labels], *(_marked(cell, table) for cell in row[table.labels :])] for row in table.rows]
    ruler = ["---"] * table.labels + ["---:"] * (len(table.header) - table.labels)
    return ["", f"## {table.name}", "", table.about, "", *map(_row, [table.header, ruler, *rows])]


def _marked(cell: str, table: Table) -> str:
    """A coverage outside the bar in bold."""
    return f"**{cell}**" if table.is_coverage and not BAR[0] <= float(cell) <= BAR[1] else cell


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def claims(size: int) -> str:
    return f"{size} claim{'s' * (size > 1)}"


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return the options of a script that simulates a page."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="Markdown page to write; without it the page is printed")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: every row, few studies")
    return parser


def simulated(parts: Sequence[Callable[[], Table]]) -> list[Table]:
    """Return the tables of a page, and print how long each took."""
    tables = []
    for part in parts:
        began = time.process_time()
        tables.append(part())
        print(f"{tables[-1].name}: {time.process_time() - began:.0f} s", flush=True)
    return tables


def page(intro: str, tables: Sequence[Table], *, script: str, quick: bool, note: Sequence[str] = ()) -> str:
    """Return a page as Markdown: conclusions, method, tables.

    Args:
        script: name of the script, and of its target in the Makefile and its page.
        note: paragraphs between the conclusions and the method.
    """
    name = {"interval_coverage": "coverage"}.get(script, script)
    command = f"python tests/campaign/{script}.py{' --quick' * quick} --out docs/results/{name}.md"
    lines = [
        *(f"- {conclusion}" for table in tables for conclusion in table.findings),
        "",
        *note,
        f"- `{command}` (`make {name}`)",
        f"- {time.strftime('%Y-%m-%d')}, commit {(git_sha() or 'unknown')[:7]}, Python {platform.python_version()}, "
        f"numpy {version('numpy')}, scipy {version('scipy')}, {time.process_time() / 60:.1f} CPU minutes",
        *(line for table in tables for line in section(table)),
    ]
    return "\n".join([intro, *lines]) + "\n"


def write_page(
    given: argparse.Namespace, intro: str, tables: Sequence[Table], *, script: str, note: Sequence[str] = ()
) -> None:
    text = page(intro, tables, script=script, quick=given.quick, note=note)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    else:
        print(text)
