"""Section of a search over settings: its trials, the best one as a command, and what its value means."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.search_trials import TITLE, read_trials, summary, table


def search(results: StudyResults) -> PageSection | None:
    """Return the section with the trials; None for a study that is no search, and before the first trial."""
    found = read_trials(results.study.path)
    if found is None or not found.trials:
        return None
    headings, rows = table(found)
    return PageSection(TITLE, summary(found), table=ReportTable(headings, rows))
