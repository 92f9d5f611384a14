"""Rendering of charts: SVG and PNG files without a browser, and the script that makes a page's figures interactive."""

from __future__ import annotations

import base64
import os
import re
import zlib
from contextlib import suppress
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path

import vl_convert

from rlhf_lab.core.files import write_text
from rlhf_lab.figures.layers import Chart
from rlhf_lab.figures.palette import PAPER, dark_rules

VEGA_LITE = "6.4"
"""Version of Vega-Lite that renders the specifications, here and on pages; a test checks them against its schema."""
PNG_SCALE = 2
"""Number of PNG pixels per SVG pixel."""


def page_svg(chart: Chart, number: int = 0) -> str:
    """Return an `svg` element for a page, whose style sheet sets the colours of the theme.

    Args:
        number: index of the figure on its page; it makes the ids of its elements unique there.
    """
    # Clip paths are referenced by id, and ids must be unique on a page with several figures.
    svg = re.sub(r'(id="|url\(#)(?=clip)', rf"\1figure{number}-", _svg(chart))
    return _titled(svg, chart, '<svg class="plot" role="img"')


def plot_files(chart: Chart) -> tuple[str, bytes]:
    """Return a figure as standalone files, SVG and PNG.

    The colours of the SVG are written out, so that every viewer shows them; browsers follow the dark theme.
    """
    rendered = _svg(chart, PAPER)
    opening = '<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img"'
    dark = f"<style>@media(prefers-color-scheme:dark){{{dark_rules()}}}</style>"
    return _titled(rendered, chart, opening, dark), vl_convert.svg_to_png(rendered, scale=PNG_SCALE)


@cache
def packed_scripts() -> str:
    """Return the script that sets `window.vegaEmbed` (Vega and Vega-Lite): deflated, as base64.

    It has a third of the original size, and a browser unpacks it in a few milliseconds. Building it takes about a
    second, so it is cached in the user's cache directory for later processes.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = caches / "rlhf_lab" / f"vega-embed-{VEGA_LITE}-{version('vl-convert-python')}.b64"
    with suppress(OSError):
        return kept.read_text(encoding="ascii")
    script = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=VEGA_LITE)
    packed = base64.b64encode(zlib.compress(script.encode(), 9)).decode()
    with suppress(OSError):  # without a writable home directory, the second is spent again next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, packed)
    return packed


def _svg(chart: Chart, background: str | None = None) -> str:
    specification = chart.specification | ({"background": background} if background else {})
    return vl_convert.vegalite_to_svg(specification, vl_version=VEGA_LITE)


def _titled(svg: str, chart: Chart, opening: str, style: str = "") -> str:
    """Return the SVG with another opening tag, and with a title and description for screen readers."""
    size = re.search(r'<svg[^>]*?( width="[^"]+" height="[^"]+" viewBox="[^"]+")[^>]*>', svg)
    assert size is not None, svg[:200]
    words = f"<title>{escape(chart.title)}</title><desc>{escape(chart.description)}</desc>"
    return f"{opening}{size[1]}>{words}{style}{svg[size.end() :]}"
