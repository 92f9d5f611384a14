"""Writes the report of a run or a study; `sections.py` lists what stands on it."""

from __future__ import annotations

from pathlib import Path

from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.page import write_page
from rlhf_lab.reports.sections import Page, page_sections
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.folders import no_result_message
from rlhf_lab.results.rundir import Run, is_run, read_run
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.studies.table import write_tables

RUN_FOOTER = (
    "Every number is measured in this run. Files beside this page: metrics.jsonl, evaluation.jsonl, result.json, "
    "config.yaml."
)
STUDY_FOOTER = "The same table: table.md and table.csv. The figure of the primary metric: plot.svg."


def write_report(folder: Path | str) -> Path:
    """Write the report of a run or study directory, whichever `folder` is.

    Returns:
        path of the written `report.html`.
    """
    folder = Path(folder)
    if is_study(folder):
        return write_study_report(folder)
    if is_run(folder):
        return write_run_report(folder)
    raise DataError(no_result_message(folder))


def write_run_report(folder: Path | str) -> Path:
    """Write `report.html` into a run directory, however far the run came; `table.md`, `plot.svg` and `plot.png` when it
    compares policies; the plots alone when it audits a reward; `attempts.html` when it ran agents."""
    return write_report_of(read_run(folder))


def write_report_of(run: Run) -> Path:
    """`write_run_report` of a run that is already read."""
    page = Page(f"{run.recipe} · {run.status}", page_sections("run", run), RUN_FOOTER)
    return write_page(run.path / "report.html", page)


def write_study_report(folder: Path | str) -> Path:
    """Write `report.html`, `table.md`, `table.csv`, the plots and what `curves` asks for into a study directory."""
    study = read_study(folder)
    results = StudyResults(study)
    write_tables(study, results.comparisons, results.finding)
    page = Page(study.question or study.recipe, page_sections("study", results), STUDY_FOOTER)
    return write_page(study.path / "report.html", page)
