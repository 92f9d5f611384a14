"""Header of a study's page: its conclusion and its claims; the origin of its numbers; and the list of its jobs."""

from __future__ import annotations

import os
from typing import Any

from rlhf_lab.reports.sections import PageSection
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.origin import code_file, origin_lines, seeds_file
from rlhf_lab.studies.registration_text import registration_lines
from rlhf_lab.studies.table import change, label
from rlhf_lab.studies.verdict import CLAIM_HEADINGS, verdict_numbers, verdicts


def header(results: StudyResults) -> PageSection:
    study = results.study
    values = {
        "study": study,
        "finding": results.conclusion,
        "label": label(study),
        "counts": study.frame["status"].value_counts().to_dict(),
        "verdicts": claim_rows(study),
        "claim_headings": CLAIM_HEADINGS,
        "registration": registration_lines(study),
        "baseline": study.label(study.baseline),
    }
    return PageSection(template=f"{__package__}:header.html.j2", values=values)


def claim_rows(study: Study) -> list[tuple[str, str, str, str]]:
    """Return the claims of a study with their verdicts, in the columns of CLAIM_HEADINGS."""
    return [(row.claim, row.verdict, verdict_numbers(row), row.detectable) for row in verdicts(study)]


def origin(results: StudyResults) -> PageSection | None:
    """Return the section on the code, time and machine behind the numbers; None for a study without results."""
    lines = origin_lines(results.study)
    if not lines:
        return None
    study = results.study
    values = {"lines": lines, "files": (seeds_file(study), code_file(study))}
    return PageSection("Where the numbers come from", template=f"{__package__}:origin.html.j2", values=values)


def jobs(results: StudyResults) -> PageSection:
    values = {"jobs": job_entries(results.study), "factors": results.study.factors}
    return PageSection("Jobs", template=f"{__package__}:jobs.html.j2", values=values)


def job_entries(study: Study) -> list[dict[str, Any]]:
    """Return every job with its overrides, status, problems, and a link to its own report if there is one."""
    entries = []
    for job in study.frame.to_dict("records"):
        report = job["run"] / "report.html" if job["run"] else None
        link = os.path.relpath(report, study.path) if report and report.is_file() else None
        # The last line of a traceback is its message.
        error = str(job["error"]).strip().splitlines()[-1] if job["error"] else ""
        overrides = [str(job[factor]) for factor in study.factors]
        note = "; ".join(filter(None, (error, change(job))))
        entries.append(
            {"index": job["index"], "overrides": overrides, "status": job["status"], "link": link, "remark": note}
        )
    return entries
