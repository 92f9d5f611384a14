"""Figures of what a reward is made of: acoustic features, named criteria, and the phones that a recogniser hears."""

from __future__ import annotations

from rlhf_lab.figures.charts import Level, dots
from rlhf_lab.figures.layers import Chart
from rlhf_lab.results.rundir import Run

FIGURES = (
    ("feature_spearman/", "Features against the truth, held-out clips", "Spearman's ρ"),
    ("feature_gain/", "What leaving a feature out costs", "held-out pair accuracy"),
    ("agreement/", "Criteria against labels, validation pairs", "Spearman's ρ"),
    ("weight/", "Weights of standardised criteria", "weight"),
    ("phone_error/", "Phone errors that the recogniser hears, held-out clips", "errors per phone"),
)
"""What begins the names of a figure's metrics, its title, and its axis."""


def parts_figures(run: Run) -> list[Chart]:
    """The figures that the run has numbers for; none for a run without parts."""
    figures = []
    for prefix, title, axis in FIGURES:
        found = {name: value for name, value in run.results.items() if name.startswith(prefix)}
        levels = [Level(name.removeprefix(prefix).replace("_", " "), value) for name, value in found.items()]
        if levels:
            figures.append(dots(levels, title=title, x_label=axis))
    return figures
