"""Sections of a study: rates over runs, correlations over settings, Pareto fronts, crossings, and the search."""

from __future__ import annotations

from rlhf_lab.figures.charts import Point, Series, estimate_tooltip, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.studies import correlations as setting_correlations
from rlhf_lab.studies import rates as run_rates
from rlhf_lab.studies.claims import AFTER_LOOK, without_seeds
from rlhf_lab.studies.correlations import (
    CorrelationVerdict,
    correlation_cells,
    correlation_title,
    correlations_of,
    units_of,
)
from rlhf_lab.studies.crossing import crossing_note, crossing_rows, crossing_title, crossings_of
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
from rlhf_lab.studies.rates import rate_cells, rates_of
from rlhf_lab.studies.search_trials import TITLE, read_trials, summary, table


def rates(results: StudyResults) -> PageSection | None:
    """Return a section with the verdicts; None if the study claims no rate."""
    study = results.study
    if not study.rates:
        return None
    rows = [rate_cells(study, verdict) for verdict in rates_of(study)]
    return PageSection("Rates over runs", run_rates.NOTE, [], ReportTable(run_rates.HEADINGS, rows, "left"))


def correlations(results: StudyResults) -> PageSection:
    """Return a section with the verdicts and one figure per claim; each figure is also a file."""
    verdicts = correlations_of(results.study)
    table = ReportTable(setting_correlations.HEADINGS, [correlation_cells(verdict) for verdict in verdicts], "left")
    boxes = [PageSection("Correlations over settings", setting_correlations.NOTE, [], table)] if verdicts else []
    files = {}
    for index, verdict in enumerate(verdicts):
        figures = []
        if verdict.verdict != AFTER_LOOK:  # otherwise no seed counts, and there is nothing to plot
            figures.append(correlation_figure(results.study, verdict))
            files[f"correlation_{index + 1}" if index else "correlation"] = figures[0]
        boxes.append(PageSection(correlation_title(verdict), verdict.sentence, figures))
    return PageSection(template="boxes.html.j2", values={"boxes": boxes}, files=files)


def correlation_figure(study: Study, verdict: CorrelationVerdict) -> Chart:
    """Plot the outcome against the predictor, a point per setting and a colour per panel."""
    x_title, y_title = metric_title(verdict.metric), metric_title(verdict.outcome)
    units = units_of(without_seeds(study, verdict.seen), [verdict.metric, verdict.outcome]).dropna()
    series = []
    for colour, (panel, rows) in enumerate(units.groupby("panel", sort=False)):
        points = []
        for unit, x, y in zip(rows["unit"], rows[verdict.metric], rows[verdict.outcome], strict=True):
            tooltip = {"settings": unit, x_title: f"{x:.3g}", y_title: f"{y:.3g}"}
            points.append(Point(float(x), float(y), tooltip=tooltip, joined=False))
        name = study.panel_label(str(panel)) if panel else "settings"
        series.append(Series(name, points, colour))
    return frontier(series, title=correlation_title(verdict), x_label=x_title, y_label=y_title)


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
        x, y = row.first, row.second
        point = Point(x.mean, y.mean, y.low, y.high, x.low, x.high, tooltip=tooltip)
        series.append(Series(study.label(row.level), [point], colour))
    return frontier(series, title=pareto_title(pareto_front), x_label=x_title, y_label=y_title)


def crossings(results: StudyResults) -> PageSection:
    """Return a section with a table per crossing: the difference from the baseline at each position."""
    study = results.study
    boxes = []
    for row in crossings_of(study):
        table = ReportTable((row.unit, "difference"), crossing_rows(row))
        boxes.append(PageSection(crossing_title(study, row), crossing_note(study, row), table=table))
    return PageSection(template="boxes.html.j2", values={"boxes": boxes})


def search(results: StudyResults) -> PageSection | None:
    """Return the section with the trials; None for a study that is no search, and before the first trial."""
    found = read_trials(results.study.path)
    if found is None or not found.trials:
        return None
    headings, rows = table(found)
    return PageSection(TITLE, summary(found), table=ReportTable(headings, rows))
