"""Figures of one page: static SVG first, which a script replaces by interactive figures."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from rlhf_lab.figures import render
from rlhf_lab.figures.layers import Chart
from rlhf_lab.results.samples import pack

SCRIPT = Path(__file__).parent / "templates" / "charts.js"
"""Script that makes the figures interactive."""


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
        start = Markup(SCRIPT.read_text(encoding="utf-8"))
        return Markup('<script type="text/plain" id="vega">{}</script>\n<script>{}</script>\n').format(packed, start)
