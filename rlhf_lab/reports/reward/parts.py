"""Figures of what a reward is made of: named criteria; other rewards draw theirs with `parts_section`."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.figures.charts import Level, dots
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import Run

CRITERIA = (
    ("agreement/", "Criteria against labels, validation pairs", "Spearman's ρ"),
    ("weight/", "Weights of standardised criteria", "weight"),
)


def criteria(run: Run) -> PageSection | None:
    return parts_section(run, CRITERIA)


def parts_section(run: Run, figures: Sequence[tuple[str, str, str]]) -> PageSection | None:
    """The figures that the run has numbers for; None where it has none.

    Args:
        figures: what begins the names of a figure's metrics, its title, and its axis.
    """
    charts = []
    for prefix, title, axis in figures:
        numbers = {name: value for name, value in run.results.items() if name.startswith(prefix)}
        levels = [Level(name.removeprefix(prefix).replace("_", " "), value) for name, value in numbers.items()]
        if levels:
            charts.append(dots(levels, title=title, x_label=axis))
    return PageSection("Parts of the reward", "With 95 % interval where there is one.", charts) if charts else None
