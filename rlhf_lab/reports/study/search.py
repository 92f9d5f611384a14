"""Section of a search over settings: its trials, the best one as a command, and what its value means."""

from __future__ import annotations

from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.search_trials import read_trials, selection_note, table


def search(results: StudyResults) -> PageSection | None:
    """Return the section with the trials; None for a study that is no search, and before the first trial."""
    found = read_trials(results.study.path)
    if found is None or not found.trials:
        return None
    headings, rows = table(found)
    sentences = [f"{len(found.trials)} of at most {found.limit} trials."]
    if found.stopped:
        sentences.append(f"The search {found.stopped}.")
    if found.command:
        sentences.append(f"{selection_note(found)} One run with the best values: `{found.command}`.")
    return PageSection("Trials of the search", " ".join(sentences), table=ReportTable(headings, rows))
