"""Correlations that a study claims: a table of verdicts, and one figure per claim with a point per setting."""

from __future__ import annotations

from rlhf_lab.figures.charts import Point, Series, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import metric_title
from rlhf_lab.studies.claims import AFTER_LOOK, without_seeds
from rlhf_lab.studies.correlations import (
    HEADINGS,
    NOTE,
    CorrelationVerdict,
    correlation_cells,
    correlation_title,
    correlations_of,
    units_of,
)
from rlhf_lab.studies.frame import Study


def correlations(results: StudyResults) -> PageSection:
    """Return a section with the verdicts and one figure per claim; each figure is also a file."""
    verdicts = correlations_of(results.study)
    table = ReportTable(HEADINGS, [correlation_cells(verdict) for verdict in verdicts], "left")
    boxes = [PageSection("Correlations over settings", NOTE, [], table)] if verdicts else []
    files = {}
    for index, verdict in enumerate(verdicts):
        if verdict.verdict == AFTER_LOOK:  # no seed counts, so there is nothing to plot
            boxes.append(PageSection(correlation_title(verdict), verdict.sentence, []))
            continue
        figure = correlation_figure(results.study, verdict)
        files[_file_name(index)] = figure
        boxes.append(PageSection(correlation_title(verdict), verdict.sentence, [figure]))
    return PageSection(template="boxes.html.j2", values={"boxes": boxes}, files=files)


def _file_name(index: int) -> str:
    return "correlation" if index == 0 else f"correlation_{index + 1}"


def correlation_figure(study: Study, verdict: CorrelationVerdict) -> Chart:
    """Plot the outcome against the predictor, a point per setting and a colour per panel."""
    x_title, y_title = metric_title(verdict.metric), metric_title(verdict.outcome)
    units = units_of(without_seeds(study, verdict.seen), [verdict.metric, verdict.outcome]).dropna()
    series = []
    for colour, (panel, rows) in enumerate(units.groupby("panel", sort=False)):
        points = []
        for row in rows.to_dict("records"):
            x, y = float(row[verdict.metric]), float(row[verdict.outcome])
            tooltip = {"settings": row["unit"], x_title: f"{x:.3g}", y_title: f"{y:.3g}"}
            points.append(Point(x, y, tooltip=tooltip, joined=False))
        name = study.panel_label(str(panel)) if panel else "settings"
        series.append(Series(name, points, colour))
    return frontier(series, title=correlation_title(verdict), x_label=x_title, y_label=y_title)
