"""Tables of a study, one per metric: a row per level with its difference from the baseline, and a figure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import judged_title, metric_note
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import job_names
from rlhf_lab.studies.table import HEADINGS, MetricSection, cells, method, section_title


def primary(results: StudyResults) -> PageSection:
    """Return the section on the metric that the question is about; its figure is also a file."""
    study = results.study
    comparisons = [comparison for comparison in results.comparisons if comparison.metric == study.primary]
    return _tables(study, comparisons, {"plot": level_dots(study, comparisons)})


def exploratory(results: StudyResults) -> PageSection:
    """Return the section on all other metrics."""
    study = results.study
    return _tables(study, [comparison for comparison in results.comparisons if comparison.metric != study.primary])


def _tables(study: Study, comparisons: Sequence[MetricSection], files: dict[str, Chart] | None = None) -> PageSection:
    """Return a section with a table and a figure per metric."""
    tables = []
    for comparison in comparisons:
        tables.append(
            {
                "title": section_title(study, comparison),
                "note": metric_note(comparison.metric),
                "primary": comparison.metric == study.primary,
                "rows": [cells(study, row) for row in comparison.rows],
                "figure": level_dots(study, [comparison]),
            }
        )
    # The first column is named after the compared setting, without its section.
    headings = (study.compare.split(".")[-1], *HEADINGS[1:])
    values = {"tables": tables, "headings": headings, "method": method(study)}
    return PageSection(template=f"{__package__}:metrics.html.j2", values=values, files=files or {})


def level_dots(study: Study, sections: Sequence[MetricSection]) -> Chart:
    """Plot a dot with a whisker per level, and every run as a small dot below its mean, panel by panel."""
    panels = dict(study.panels())
    levels = []
    for section in sections:
        completed = panels[section.by].completed
        for row in section.rows:
            jobs = completed[completed["level"] == row.level]
            runs = jobs[section.metric].tolist()
            name = study.label(row.level)
            if len(sections) > 1:
                name = f"{study.panel_label(section.by)}: {name}"
            reference = row.level == study.baseline
            levels.append(Level(name, row.mean, runs, reference, run_names=job_names(jobs), units="seeds"))
    title = judged_title(sections[0].metric, study.has_gold)
    compared = study.compare.rpartition(".")[2].replace("_", " ")
    return dot_chart(levels, title=f"{title} by {compared}", x_label=title)
