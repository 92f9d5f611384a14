"""Writer of the report of a run or a study; `sections.py` lists its sections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlhf_lab.reports.page import write_page
from rlhf_lab.reports.sections import ReportPage, page_sections
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.rundir import StoredRun, read_run
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.studies.origin import record_provenance
from rlhf_lab.studies.registration import record_look
from rlhf_lab.studies.table import write_tables

RUN_FOOTER = (
    "Every number is measured in this run. Files next to this page: metrics.jsonl, evaluation.jsonl, result.json, "
    "config.yaml."
)
STUDY_FOOTER = "The same table: table.md and table.csv. The figure of the primary metric: plot.svg."


def write_report(directory: Path | str) -> Path:
    """Write the report of a study, of a run, or of the run of a job, whichever `directory` is.

    Returns:
        path of the written `report.html`.
    Raises:
        DataError: the directory is none of these.
    """
    directory = Path(directory)
    if is_study(directory):
        return write_study_report(directory)
    return write_run_report(find_run(directory))


def write_run_report(directory: Path | str) -> Path:
    """Write `report.html` into a run directory, complete or not.

    It adds `table.md`, `plot.svg` and `plot.png` if the run compares policies, the plots alone if it audits a reward,
    and `attempts.html` if it ran agents.
    """
    return write_report_of(read_run(directory))


def write_report_of(run: StoredRun) -> Path:
    """Write the report of a run that has already been read; see `write_run_report`."""
    page = ReportPage(f"{run.recipe} · {run.status}", page_sections("run", run), RUN_FOOTER)
    return write_page(run.path / "report.html", page)


def write_study_report(directory: Path | str) -> Path:
    """Write `report.html`, `table.md`, `table.csv`, the plots and the requested curves into a study directory."""
    study = read_study(directory)
    # What the page shows has been looked at: claims that are added later may not use these seeds.
    registration = record_look(study.path, study.completed["index"])
    provenance = record_provenance(study)
    results = StudyResults(replace(study, registration=registration, provenance=provenance))
    write_tables(results.study, results.comparisons, results.conclusion)
    page = ReportPage(study.question or study.recipe, page_sections("study", results), STUDY_FOOTER)
    return write_page(study.path / "report.html", page)
