"""The policies of a study on its page: scores and lights by level, responses side by side, and any two jobs."""

from __future__ import annotations

from rlhf_lab.reports.run.samples import samples_section
from rlhf_lab.reports.sections import PageSection, Table
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.glossary import term


def policies(results: StudyResults) -> PageSection | None:
    """Scores of the last policy of each level, and in how many jobs each light is on; None without policies."""
    last, lights = results.policies["last"], results.policies["lights"]
    if not last and not lights:
        return None
    note, table = "", None
    if last:
        note = "Mean over the jobs of a level, with a 95 % interval over seeds."
        headings = ["level", "jobs", *(term(title, meaning) for title, meaning in last["columns"])]
        table = Table(headings, [(level, count, *values) for level, count, values in last["rows"]])
    template = f"{__package__}:policies.html.j2"
    return PageSection("Last policy of each level", note, table=table, template=template, values={"lights": lights})


def samples(results: StudyResults) -> PageSection | None:
    return samples_section(results.policies["samples"])


def pairs(results: StudyResults) -> PageSection | None:
    """Any two completed jobs beside one another; None where fewer than two completed."""
    pairs = results.policies["pairs"]
    if not pairs["jobs"]:
        return None
    return PageSection("Any two jobs", template=f"{__package__}:pairs.html.j2", values={"pairs": pairs})
