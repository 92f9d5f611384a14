"""Rates over runs that a study claims: a table of verdicts."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.rates import HEADINGS, NOTE, rate_cells, rates_of


def rates(results: StudyResults) -> PageSection | None:
    """Return a section with the verdicts; None if the study claims no rate."""
    study = results.study
    if not study.rates:
        return None
    rows = [rate_cells(study, verdict) for verdict in rates_of(study)]
    return PageSection("Rates over runs", NOTE, [], ReportTable(HEADINGS, rows, "left"))
