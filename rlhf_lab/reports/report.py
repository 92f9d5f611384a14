"""Writes the report of a run or a study: one self-contained HTML file that opens from disk.

The pages need no network. A few lines of plain JavaScript choose which samples stand side by side, and without it the
first prompt is shown; figures are static until the script of figures runs. Sample text, config and errors are untrusted
and always escaped.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import write_bytes, write_text
from rlhf_lab.figures import render
from rlhf_lab.figures.layers import Chart
from rlhf_lab.figures.palette import DARK, LIGHT, dark_rules
from rlhf_lab.reports.attempts.view import attempts_view
from rlhf_lab.reports.drawing import PageFigures
from rlhf_lab.reports.run.run_view import run_markdown, run_view
from rlhf_lab.reports.study.study_view import primary_dots, study_view
from rlhf_lab.results.folders import no_result_message
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import Run, is_run, read_run
from rlhf_lab.studies.finding import write_finding
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.studies.front import front_file
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
    """Write `report.html` into a run directory, however far the run came; `table.md`, `plot.svg` and `plot.png` when it
    compares policies; the plots alone when it audits a reward; `attempts.html` when it ran agents."""
    return write_report_of(read_run(folder))


def write_report_of(run: Run) -> Path:
    """`write_run_report` of a run that is already read."""
    view = run_view(run)
    attempts = attempts_view(run)
    if attempts:
        write_page(run.path / "attempts.html", "attempts.html.j2", **attempts)
    view["attempts"] = attempts
    if view["frontier"]:
        write_plot(run.path / "plot", view["frontier"])
        write_text(run.path / "table.md", run_markdown(view))
    elif view["reward"] and view["reward"]["reliability"]:
        write_plot(run.path / "plot", view["reward"]["reliability"])
    return write_page(run.path / "report.html", "run.html.j2", **view)


def write_study_report(folder: Path | str) -> Path:
    """Write `report.html`, `table.md`, `table.csv`, the plots and what `curves` asks for into a study directory."""
    study = read_study(folder)
    sections = build_sections(study)
    finding = write_finding(study, sections)
    write_tables(study, sections, finding)
    write_plot(study.path / "plot", primary_dots(study, sections))
    view = study_view(study, sections, finding)
    for number, front in enumerate(view["fronts"]):
        write_plot(study.path / front_file(number), front["figure"])
    if study.curves and view["curves"]:
        write_plot(study.path / study.curves, view["curves"]["figure"])
    return write_page(study.path / "report.html", "study.html.j2", **view)


def write_plot(path: Path, chart: Chart) -> None:
    """Write a figure as `path`.svg and `path`.png."""
    svg, png = render.plot_files(chart)
    write_text(path.with_suffix(".svg"), svg)
    write_bytes(path.with_suffix(".png"), png)


def write_page(path: Path, template: str, **view: object) -> Path:
    """Render a template of this package to a self-contained file; returns its path."""
    text = _template_environment().get_template(template).render(page=PageFigures(), **view)
    write_text(path, text)
    return path


@cache
def _template_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = Markup  # only for what samples.pack wrote, which cannot leave its script element
    environment.filters["code"] = _backticks_as_code
    environment.filters["term"] = term
    environment.globals.update(light=Markup(LIGHT), dark=Markup(DARK), dark_figures=Markup(dark_rules(".chart svg")))
    return environment


def _backticks_as_code(text: str) -> Markup:
    """Escaped text with `backticks` as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
