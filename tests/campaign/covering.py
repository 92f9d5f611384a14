"""Frequencies with which intervals hold the truth: tallies, tables and the sentences about them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

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
