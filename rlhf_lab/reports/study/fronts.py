"""The fronts that a study asks for: one metric against another, and which levels no other level beats in both."""

from __future__ import annotations

from rlhf_lab.figures.charts import Point, Series, estimate_facts, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, Table
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.front import (
    Front,
    front_cells,
    front_file,
    front_headings,
    front_note,
    front_title,
    fronts_of,
    standing_in_words,
)


def fronts(results: StudyResults) -> PageSection:
    """A box per front; each figure is also a file."""
    boxes = [_box(results.study, front) for front in fronts_of(results.study)]
    files = {front_file(number): box.figures[0] for number, box in enumerate(boxes)}
    return PageSection(template="boxes.html.j2", values={"boxes": boxes}, files=files)


def _box(study: Study, front: Front) -> PageSection:
    table = Table(front_headings(front), [front_cells(study, row) for row in front.levels], "left")
    return PageSection(front_title(front), front_note(front), [front_figure(study, front)], table)


def front_figure(study: Study, front: Front) -> Chart:
    """One metric against the other, a point per level with both its intervals."""
    x_title, y_title = (metric_title(name) for name in front.metrics)
    series = []
    for colour, row in enumerate(front.levels):
        facts = {
            **estimate_facts(x_title, row.first, units="seeds"),
            y_title: compact(row.second),
            "standing": standing_in_words(study, row),
        }
        first, second = row.first, row.second
        point = Point(first.mean, second.mean, second.low, second.high, first.low, first.high, facts=facts)
        series.append(Series(study.label(row.level), [point], colour))
    return frontier(series, title=front_title(front), x_label=x_title, y_label=y_title)
