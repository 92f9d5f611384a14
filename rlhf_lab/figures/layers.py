"""Building blocks of the charts: axes, colours with their legend, vertical lines, labels, and interaction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from rlhf_lab.figures import palette
from rlhf_lab.figures.labels import TextLabel, place_labels
from rlhf_lab.figures.palette import INK, PAPER, SOFT, light_colour
from rlhf_lab.figures.vegalite import Json, MarkLayer, Tables, channel, layered

FAINT = 0.06
"""Opacity of series that the reader has deselected in the legend."""
PICK = "pick"
"""Name of the parameter with the series selected in the legend."""
NAME_PIXELS = 170
"""Maximum width of a name, px; longer names are cut with an ellipsis."""
LETTER = 6.2
"""Approximate width of a letter in figures, px."""
OFFSET: dict[str, Any] = {
    "dx": {"expr": "datum.dx"},
    "dy": {"expr": "datum.dy"},
    "align": {"expr": "datum.dx < 0 ? 'right' : 'left'"},
}
"""Style of a text at the offset of its row from the point, px; a negative dx puts it on the left."""
TOP: Json = {"value": 0}
"""Channel of marks at the top of the plot."""
TITLE_LETTERS = {"x": 50, "y": 36}
"""Maximum number of letters in a line of an axis title, by axis: more would not fit a telephone."""
CONFIG: dict[str, Any] = {
    "background": "transparent",  # a page has its own background; render.py sets one for files
    "font": palette.FONT,
    # The right side has space for half an axis number.
    "padding": {"left": 3, "top": 3, "bottom": 3, "right": 12},
    "aria": False,  # the figure has one title and description; a label per mark would double its size
    "view": {"stroke": None},
    "axis": {
        "labelColor": SOFT,
        "titleColor": INK,
        "gridColor": palette.GRID,
        "domainColor": SOFT,
        "tickColor": SOFT,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 6,
    },
    # Titles are aligned with the end of the axis: a long centred title would extend beyond a narrow figure.
    "axisX": {"grid": False, "tickSize": 4, "titleAnchor": "end", "labelOverlap": "parity", "labelSeparation": 6},
    "axisY": {"domain": False, "ticks": False},
    "legend": {
        "orient": "top",
        "labelColor": INK,
        "labelFontSize": 11,
        "labelLimit": NAME_PIXELS,
        "title": None,
        "offset": 6,
        "rowPadding": 2,
        "columnPadding": 14,
    },
}


WHOLE_TICKS = 10
"""Maximum number of integers that an axis marks individually."""


@dataclass(frozen=True)
class Chart:
    """Figure with its text.

    Attributes:
        specification: Vega-Lite specification, as JSON values.
    """

    title: str
    description: str
    specification: dict[str, Any]


@dataclass(frozen=True)
class EventMark:
    """Vertical line with a word next to it."""

    x: float
    word: str


def finish(
    tables: Tables,
    layers: Sequence[MarkLayer],
    title: str,
    description: str,
    width: int,
    height: int | Json,
    *,
    zoom: Sequence[Literal["x", "y"]] = ("x", "y"),
    legend: bool = True,
) -> Chart:
    """Combine layers into a chart with interaction: pan and zoom, and a legend that selects series."""
    # Zooming needs Ctrl, because the mouse wheel alone scrolls the page.
    zooming = {"type": "interval", "encodings": list(zoom), "zoom": "wheel![event.ctrlKey]"}
    params: list[Json] = [{"name": "zoom", "select": zooming, "bind": "scales"}]
    if legend:
        # If no series is selected, all are shown. Each click adds or removes one.
        picking = {"type": "point", "fields": ["series"], "toggle": "true"}
        params.append({"name": PICK, "select": picking, "bind": "legend"})
    specification = {"config": CONFIG, **layered(layers, params, width, height), "datasets": tables.rows}
    return Chart(title, description, specification)


def picked() -> Json:
    """Return the opacity of series that are selected in the legend, and of those that are not."""
    return {"condition": {"param": PICK, "value": 1}, "value": FAINT}


def span(values: Iterable[float | None], pad: float = 0.06, include: Sequence[float] = ()) -> tuple[float, float]:
    """Return the range of the finite values, padded by a fraction of it; never empty."""
    finite = [value for value in (*values, *include) if value is not None and math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:  # a single value gets 10 % of its size on each side, or 1 if it is 0
        pad_low = abs(low) * 0.1 or 1.0
        pad_high = abs(high) * 0.1 or 1.0
        return low - pad_low, high + pad_high
    return low - pad * (high - low), high + pad * (high - low)


def axis_of(field_name: str, label: str, limits: tuple[float, float], **axis: Any) -> Any:
    """Return the channel of a quantity with the title and limits of its axis."""
    scale = {"domain": list(limits), "nice": False, "zero": False}
    title = title_lines(label, "y" if field_name == "y" else "x")
    return channel(f"{field_name}:Q", title=title, scale=scale, axis=axis)


def whole_ticks(limits: tuple[float, float], number_format: str) -> dict[str, Any]:
    """Return settings of an axis that marks only integers.

    Vega's `tickMinStep` alone may put a tick at 0.5, which an integer format prints as 1. A short axis therefore gets
    explicit tick values.
    """
    first, last = math.ceil(limits[0]), math.floor(limits[1])
    if last - first > WHOLE_TICKS:
        return {"tickMinStep": 1, "format": number_format}
    return {"values": list(range(first, last + 1)), "format": number_format}


def title_lines(label: str, axis: str) -> list[str] | None:
    """Return an axis title wrapped into lines that fit; None if the title is empty."""
    return wrap(label, TITLE_LETTERS[axis]) or None


def name_axis(*, grid: bool = True) -> Json:
    return {"labelLimit": NAME_PIXELS, "labelColor": INK, "labelPadding": 8, "grid": grid}


def legend_columns(max_length: int) -> Any:
    """Return the number of legend columns that fit its width, if `max_length` is the length of its longest name."""
    # 34 px are for the symbol and the padding of a column.
    column_width = 34 + LETTER * min(max_length, NAME_PIXELS / LETTER)
    return {"expr": f"max(1, floor(width / {column_width:.0f}))"}


def colour_of(entries: Sequence[tuple[str, int]], *, legend: bool, symbol: str | None) -> Json:
    """Return the colour channel of series.

    Args:
        entries: (name, colour) of each series.
        symbol: Vega's symbol type in the legend; None shows the marker of each series.
    """
    names = [name for name, _ in entries]
    scale = {"domain": names, "range": [light_colour(number) for _, number in entries]}
    if not legend:
        return channel("series:N", scale=scale, legend=None)
    style: dict[str, Any] = {"symbolDash": [], "symbolStrokeWidth": 0, "symbolSize": 60}
    if symbol:
        style = {"symbolType": symbol}
    max_length = max(map(len, names), default=1)
    return channel("series:N", scale=scale, legend=dict(title=None, columns=legend_columns(max_length), **style))


def dash_of(entries: Sequence[tuple[str, int]]) -> Json:
    """Return the dash channel of series, as (name, colour) pairs."""
    patterns = [palette.dash_pattern(number) for _, number in entries]
    scale = {"domain": [name for name, _ in entries], "range": patterns}
    return channel("series:N", scale=scale, legend=None)


def shape_of(entries: Sequence[tuple[str, int]]) -> Json:
    """Return the marker channel of series, as (name, colour) pairs."""
    shapes = [palette.shape(number) for _, number in entries]
    scale = {"domain": [name for name, _ in entries], "range": shapes}
    return channel("series:N", scale=scale)


def event_layers(
    tables: Tables, events: Sequence[EventMark], x_label: str, x_range: tuple[float, float]
) -> list[MarkLayer]:
    """Return a dashed vertical line per event with its word next to it, each word in a separate row."""
    if not events:
        return []
    middle = sum(x_range) / 2
    # The word is on the inner side, so that it stays inside the plot.
    rows = [
        {"x": event.x, "word": event.word, "dx": -4 if event.x > middle else 4, "dy": 8 + 12 * index}
        for index, event in enumerate(events)
    ]
    base = tables.chart(rows).encode(x=channel("x:Q", title=title_lines(x_label, "x")))
    lines = base.mark("rule", color=SOFT, strokeDash=[4, 3], clip=True)
    return [lines, *_readable(base.encode(y=TOP, text="word:N"), OFFSET)]


def _readable(layer: MarkLayer, style: Mapping[str, Any]) -> list[MarkLayer]:
    """Return the text of a layer with a halo in the colour of the paper, readable on top of lines."""
    halo = layer.mark("text", **style, stroke=PAPER, strokeWidth=3, color=PAPER)
    return [halo, layer.mark("text", **style, color=INK)]


def label_layers(
    tables: Tables,
    labels: Sequence[TextLabel],
    x: Any,
    y: Any,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    height: int,
) -> list[MarkLayer]:
    """Return labels at positions without overlap, with a halo that keeps them readable on top of lines."""
    rendered = [label for label in labels if math.isfinite(label.x) and math.isfinite(label.y)]
    if not any(label.text for label in rendered):
        return []
    rows = [
        {"x": label.x, "y": label.y, "word": label.text, "dx": dx, "dy": dy}
        for label, dx, dy in place_labels(rendered, x_range, y_range, height=height)
    ]
    base = tables.chart(rows).encode(x=x, y=y, text="word:N")
    words = {**OFFSET, "baseline": "middle", "limit": NAME_PIXELS}
    return [base.mark("text", **words, stroke=PAPER, strokeWidth=3, color=PAPER), base.mark("text", **words, color=INK)]
