"""Figures of the components of a reward: named criteria. Other rewards use `parts_section` for theirs."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import StoredRun

# (prefix of the metrics, title of the figure, title of its axis)
CRITERIA = (
    ("agreement/", "Criteria against labels, validation pairs", "Spearman's ρ"),
    ("weight/", "Weights of standardised criteria", "weight"),
)


def criteria(run: StoredRun) -> PageSection | None:
    """Return the section with figures of criteria; None for a run without criteria."""
    return parts_section(run, CRITERIA)


def parts_section(run: StoredRun, figures: Sequence[tuple[str, str, str]]) -> PageSection | None:
    """Return a section with the figures for which the run has numbers; None if there are none.

    Args:
        run: the run.
        figures: (prefix of the figure's metrics, title, title of the axis).
    """
    charts = []
    for prefix, title, axis in figures:
        numbers = {name: value for name, value in run.results.items() if name.startswith(prefix)}
        levels = []
        for name, value in numbers.items():
            part = name.removeprefix(prefix).replace("_", " ")
            levels.append(Level(part, value))
        if levels:
            charts.append(dot_chart(levels, title=title, x_label=axis))
    if not charts:
        return None
    return PageSection("Components of the reward", "With 95 % interval if there is one.", charts)
