"""Policies of a study on its page: scores and warning lights by level, and responses side by side."""

from __future__ import annotations

from rlhf_lab.reports.run.samples import samples_section
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.glossary import term


def policies(results: StudyResults) -> PageSection | None:
    """Return the section with scores and warning lights of each level's last policy; None without policies."""
    last, lights = results.policies["last"], results.policies["lights"]
    if not last and not lights:
        return None
    table = None
    if last:
        headings = ["level", "jobs", *(term(title, meaning) for title, meaning in last["columns"])]
        rows = [(level, count, *values) for level, count, values in last["rows"]]
        table = ReportTable(headings, rows)
    note = "Mean over the jobs of a level, with a 95 % interval over seeds." if table else ""
    template = f"{__package__}:policies.html.j2"
    return PageSection("Last policy of each level", note, table=table, template=template, values={"lights": lights})


def samples(results: StudyResults) -> PageSection | None:
    """Return the section with one job's responses per level side by side."""
    return samples_section(results.policies["samples"])
