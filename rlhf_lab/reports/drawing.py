"""The figures of one page: static SVG first, which a script replaces by interactive ones."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from rlhf_lab.figures import render
from rlhf_lab.figures.layers import Chart
from rlhf_lab.results.samples import pack

SCRIPT = Path(__file__).parent / "templates" / "charts.js"


class PageFigures:
    """What a page's template draws its figures with. A page without figures gets no script."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self, chart: Chart) -> Markup:
        """A figure that is complete without scripts, and the specification that makes it interactive."""
        self.drawn += 1
        # The SVG's text is escaped by what drew it; the JSON cannot close its script element.
        svg = Markup(render.page_svg(chart, self.drawn))
        specification = Markup(pack(chart.specification))
        figure = Markup('<div class="chart" tabindex="0" role="group" aria-label="{}">{}{}</div>')
        data = Markup('<script type="application/json">{}</script>').format(specification)
        return figure.format(chart.title, svg, data)

    def script(self) -> Markup:
        """The end of a page: Vega-Lite, packed, and the script that uses it; nothing on a page without figures."""
        if not self.drawn:
            return Markup("")
        packed = Markup(render.packed_scripts())
        start = Markup(SCRIPT.read_text(encoding="utf-8"))
        return Markup('<script type="text/plain" id="vega">{}</script>\n<script>{}</script>\n').format(packed, start)
