"""Figures of what a reward is made of, from numbers of the run whose names begin alike; and those of named criteria."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_lab.figures.charts import Level, dots
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import Run


class PartFigure(NamedTuple):
    """A figure of all numbers of a run whose names begin with `prefix`."""

    prefix: str
    title: str
    axis: str


CRITERIA = (
    PartFigure("agreement/", "Criteria against labels, validation pairs", "Spearman's ρ"),
    PartFigure("weight/", "Weights of standardised criteria", "weight"),
)


def criteria(run: Run) -> PageSection | None:
    return parts_section(run, CRITERIA)


def parts_section(run: Run, figures: Sequence[PartFigure]) -> PageSection | None:
    """The figures that the run has numbers for; None where it has none."""
    charts = parts_charts(run, figures)
    return PageSection("Parts of the reward", "With 95 % interval where there is one.", charts) if charts else None


def parts_charts(run: Run, figures: Sequence[PartFigure]) -> list[Chart]:
    charts = []
    for prefix, title, axis in figures:
        numbers = {name: value for name, value in run.results.items() if name.startswith(prefix)}
        levels = [Level(name.removeprefix(prefix).replace("_", " "), value) for name, value in numbers.items()]
        if levels:
            charts.append(dots(levels, title=title, x_label=axis))
    return charts
