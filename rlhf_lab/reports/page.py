"""Writer of pages: one self-contained HTML file each, which opens from disk, plus the files that its sections request.

The pages need no network. A few lines of JavaScript select the samples that are shown side by side; without JavaScript
the first prompt is shown. Figures are static until their script runs. Sample text, config and errors are untrusted and
always escaped.
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
from rlhf_lab.reports.sections import ReportPage
from rlhf_lab.results.glossary import term
from rlhf_lab.results.samples import pack

TEMPLATES = Path(__file__).parent / "templates"


def write_page(path: Path, page: ReportPage) -> Path:
    """Write a page and the additional files of its sections. Return its path."""
    figures = PageFigures()
    environment = _template_environment()
    bodies = []
    for name, section in page.sections.items():
        template = environment.get_template(section.template)
        # The template has escaped its values, so its output is safe markup.
        bodies.append(Markup(template.render(page=figures, id=name, section=section, **section.values)))
    siblings: dict[str, str | Chart | ReportPage] = {}
    for section in page.sections.values():
        siblings |= section.files
    for name, content in siblings.items():
        _write_next_to(path.parent / name, content)
    # Rendered last, because the footer's script needs to know whether there are figures.
    skeleton = environment.get_template("report.html.j2")
    write_text(path, skeleton.render(page=figures, title=page.title, footer=page.footer, bodies=bodies))
    return path


def _write_next_to(path: Path, content: str | Chart | ReportPage) -> None:
    """Write a file next to a page: text, a chart as SVG and PNG, or another page."""
    if isinstance(content, ReportPage):
        write_page(path, content)
    elif isinstance(content, Chart):
        svg, png = render.plot_files(content)
        write_text(path.with_suffix(".svg"), svg)
        write_bytes(path.with_suffix(".png"), png)
    else:
        write_text(path, content)


class _Templates(Environment):
    """Jinja environment in which ":file" refers to a file of the same package."""

    def join_path(self, template: str, parent: str) -> str:
        """Resolve the name of a template that another template includes."""
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
    # These values are CSS of the package itself, so they must not be escaped.
    environment.globals.update(light=Markup(LIGHT), dark=Markup(DARK), dark_figures=Markup(dark_rules(".chart svg")))
    return environment


def _template_source(name: str) -> str | None:
    """Return the text of a template "package:file", or of a file in reports/templates; None if it does not exist."""
    package, _, file = name.rpartition(":")
    source = files(package) / file if package else TEMPLATES / file
    return source.read_text(encoding="utf-8") if source.is_file() else None


def _as_json(value: Any) -> Markup:
    """Return JSON that is safe in a script element: no text in it can close the element."""
    return Markup(pack(value))


def _backticks_as_code(text: str) -> Markup:
    """Return escaped text with `backticks` as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


class PageFigures:
    """Renderer of a page's figures for its templates. A page without figures gets no script."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self, chart: Chart) -> Markup:
        """Return a figure that is complete without scripts, with the specification that makes it interactive."""
        self.drawn += 1
        # The SVG's text was escaped when it was rendered, and `pack` keeps JSON from closing its script element.
        svg = Markup(render.page_svg(chart, self.drawn))
        specification = Markup(pack(chart.specification))
        figure = Markup('<div class="chart" tabindex="0" role="group" aria-label="{}">{}{}</div>')
        data = Markup('<script type="application/json">{}</script>').format(specification)
        return figure.format(chart.title, svg, data)

    def script(self) -> Markup:
        """Return the end of a page: the packed Vega-Lite and the script that uses it; empty without figures."""
        if not self.drawn:
            return Markup("")
        packed = Markup(render.packed_scripts())
        start = Markup((TEMPLATES / "charts.js").read_text(encoding="utf-8"))
        return Markup('<script type="text/plain" id="vega">{}</script>\n<script>{}</script>\n').format(packed, start)
