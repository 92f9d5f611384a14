"""Pareto fronts of a study: one metric against another, and the levels that no other level beats in both."""

from __future__ import annotations

from rlhf_lab.figures.charts import Point, Series, estimate_tooltip, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pareto_front import (
    ParetoFront,
    fronts_of,
    pareto_cells,
    pareto_file,
    pareto_headings,
    pareto_note,
    pareto_title,
    standing_in_words,
)


def fronts(results: StudyResults) -> PageSection:
    """Return a section with a box per Pareto front; each figure is also a file."""
    boxes = [_box(results.study, pareto_front) for pareto_front in fronts_of(results.study)]
    files = {pareto_file(index): box.figures[0] for index, box in enumerate(boxes)}
    return PageSection(template="boxes.html.j2", values={"boxes": boxes}, files=files)


def _box(study: Study, pareto_front: ParetoFront) -> PageSection:
    rows = [pareto_cells(study, row) for row in pareto_front.levels]
    table = ReportTable(pareto_headings(pareto_front), rows, "left")
    figure = pareto_figure(study, pareto_front)
    return PageSection(pareto_title(pareto_front), pareto_note(pareto_front), [figure], table)


def pareto_figure(study: Study, pareto_front: ParetoFront) -> Chart:
    """Plot one metric against the other, a point per level with both its intervals."""
    x_title, y_title = (metric_title(name) for name in pareto_front.metrics)
    series = []
    # One series per level, so that the legend names the levels.
    for colour, row in enumerate(pareto_front.levels):
        tooltip = {
            **estimate_tooltip(x_title, row.first, units="seeds"),
            y_title: compact(row.second),
            "standing": standing_in_words(study, row),
        }
        first, second = row.first, row.second
        y_bounds = (second.low, second.high)
        x_bounds = (first.low, first.high)
        point = Point(first.mean, second.mean, *y_bounds, *x_bounds, tooltip=tooltip)
        series.append(Series(study.label(row.level), [point], colour))
    return frontier(series, title=pareto_title(pareto_front), x_label=x_title, y_label=y_title)
