"""Writes the report of a run or a study: one self-contained HTML file that opens from disk.

The pages need no network and no library; a few lines of plain JavaScript choose which samples stand side by side, and
without it the first prompt is shown. Sample text, config and errors are untrusted and always escaped.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import write_text
from rlhf_lab.figures.svg import DARK, LIGHT, STYLE
from rlhf_lab.reports.run.reward_view import reliability_plot
from rlhf_lab.reports.run.run_view import kl_frontier, run_markdown, run_view
from rlhf_lab.reports.study.study_view import primary_dots, study_view
from rlhf_lab.results.folders import no_result_message
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import Run, is_run, read_run
from rlhf_lab.studies.curves import curve_figure, level_curves
from rlhf_lab.studies.finding import write_finding
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.studies.table import build_sections, write_tables

TEMPLATES = Path(__file__).parent / "templates"


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
    """Write `report.html` into a run directory, however far the run came; `table.md` and `plot.svg` when it compares
    policies; `plot.svg` alone when it audits a reward."""
    return write_report_of(read_run(folder))


def write_report_of(run: Run) -> Path:
    """`write_run_report` of a run that is already read."""
    view = run_view(run)
    plot = kl_frontier(run, standalone=True)
    if plot:
        write_text(run.path / "plot.svg", plot)
        write_text(run.path / "table.md", run_markdown(view))
    elif reliability := reliability_plot(run):
        write_text(run.path / "plot.svg", reliability)
    return write_page(run.path / "report.html", "run.html.j2", **view)


def write_study_report(folder: Path | str) -> Path:
    """Write `report.html`, `table.md`, `table.csv`, `plot.svg` and what `curves` asks for into a study directory."""
    study = read_study(folder)
    sections = build_sections(study)
    finding = write_finding(study, sections)
    write_tables(study, sections, finding)
    write_text(study.path / "plot.svg", primary_dots(study, sections, standalone=True))
    if study.curves and (curves := level_curves(study)):
        write_text(study.path / f"{study.curves}.svg", curve_figure(curves, standalone=True))
    return write_page(study.path / "report.html", "study.html.j2", **study_view(study, sections, finding))


def write_page(page: Path, template: str, **view: object) -> Path:
    """Render a template of this package to a self-contained file; returns its path."""
    write_text(page, _template_environment().get_template(template).render(**view))
    return page


@cache
def _template_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # only for what figures.charts wrote, which escapes its own text
    environment.filters["code"] = _backticks_as_code
    environment.filters["term"] = term
    environment.globals.update(light=Markup(LIGHT), dark=Markup(DARK), plot_style=Markup(STYLE))
    return environment


def _backticks_as_code(text: str) -> Markup:
    """Escaped text with `backticks` as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
