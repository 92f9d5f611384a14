"""Writes pages: one self-contained HTML file each, which opens from disk, with the files that its sections ask for.

The pages need no network. A few lines of plain JavaScript choose which samples stand side by side, and without it the
first prompt is shown; figures are static until the script of figures runs. Sample text, config and errors are untrusted
and always escaped.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from rlhf_lab.core.files import write_bytes, write_text
from rlhf_lab.figures import render
from rlhf_lab.figures.layers import Chart
from rlhf_lab.figures.palette import DARK, LIGHT, dark_rules
from rlhf_lab.reports.drawing import PageFigures
from rlhf_lab.reports.sections import Page
from rlhf_lab.results.glossary import term
from rlhf_lab.results.samples import pack

TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, page: Page) -> Path:
    """Write a page, and what its sections put beside it. Returns its path."""
    figures = PageFigures()
    environment = _template_environment()
    bodies = []
    for name, section in page.sections.items():
        template = environment.get_template(section.template)
        bodies.append(Markup(template.render(page=figures, id=name, section=section, **section.values)))
    beside = {name: content for section in page.sections.values() for name, content in section.files.items()}
    for name, content in beside.items():
        _write_beside(path.parent / name, content)
    skeleton = environment.get_template("report.html.j2")
    write_text(path, skeleton.render(page=figures, title=page.title, footer=page.footer, bodies=bodies))
    return path


def _write_beside(path: Path, content: str | Chart | Page) -> None:
    if isinstance(content, Page):
        write_page(path, content)
    elif isinstance(content, Chart):
        svg, png = render.plot_files(content)
        write_text(path.with_suffix(".svg"), svg)
        write_bytes(path.with_suffix(".png"), png)
    else:
        write_text(path, content)


class _Templates(Environment):
    """Templates in which ":file" is a file of the same package."""

    def join_path(self, template: str, parent: str) -> str:
        return parent.partition(":")[0] + template if template.startswith(":") else template


@cache
def _template_environment() -> Environment:
    environment = _Templates(
        loader=FunctionLoader(_template_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = _as_json
    environment.filters["code"] = _backticks_as_code
    environment.filters["term"] = term
    environment.globals.update(light=Markup(LIGHT), dark=Markup(DARK), dark_figures=Markup(dark_rules(".chart svg")))
    return environment


def _template_source(name: str) -> str | None:
    """Text of a template "package:file", or of a file in reports/templates; None where there is none."""
    package, _, file = name.rpartition(":")
    source = files(package) / file if package else TEMPLATES / file
    return source.read_text(encoding="utf-8") if source.is_file() else None


def _as_json(value: Any) -> Markup:
    """JSON for a script element, which it cannot leave."""
    return Markup(pack(value))


def _backticks_as_code(text: str) -> Markup:
    """Escaped text with `backticks` as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
