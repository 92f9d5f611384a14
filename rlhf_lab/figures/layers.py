"""What the charts are made of: axes, colours with their legend, vertical lines, labels, and what a reader can do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from rlhf_lab.figures import palette
from rlhf_lab.figures.labels import Label, place_labels
from rlhf_lab.figures.palette import INK, PAPER, SOFT, tone
from rlhf_lab.figures.tables import Tables
from rlhf_lab.figures.vegalite import Json, Layer, channel, conditional, constant, expression, layered

FAINT = 0.06
"""Opacity of series that the reader has switched off in the legend."""
PICK = "pick"
"""Name of the parameter that holds the series chosen in the legend."""
NAME_PIXELS = 170
"""Longer names are cut with an ellipsis."""
LETTER = 6.2
"""Width of a letter in figures, px."""
TITLE_LETTERS = {"x": 50, "y": 36}
"""Of a line of an axis title: what fits a telephone."""
CONFIG: dict[str, Any] = {
    "background": "transparent",  # a page has its own; render.py gives one to files
    "font": palette.FONT,
    "padding": {"left": 3, "top": 3, "bottom": 3, "right": 12},  # half of a number at the end of the axis
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
    # Titles end where the axis ends: centred, a long one would leave a narrow figure on the right.
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


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        title: what it is called.
        description: what it shows, in words.
        specification: Vega-Lite, as JSON values.
    """

    title: str
    description: str
    specification: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """A vertical line with a word on it."""

    x: float
    word: str


def finish(
    tables: Tables,
    layers: Sequence[Layer],
    title: str,
    description: str,
    width: int,
    height: int | Json,
    *,
    zoom: Sequence[Literal["x", "y"]] = ("x", "y"),
    legend: bool = True,
) -> Chart:
    """The layers with what a reader can do: pan and zoom, and choose series in the legend."""
    # The wheel alone scrolls the page.
    zooming = {"type": "interval", "encodings": list(zoom), "zoom": "wheel![event.ctrlKey]"}
    params: list[Json] = [{"name": "zoom", "select": zooming, "bind": "scales"}]
    if legend:
        # The series chosen in the legend; none chosen shows all. Each click adds or removes one.
        picking = {"type": "point", "fields": ["series"], "toggle": "true"}
        params.append({"name": PICK, "select": picking, "bind": "legend"})
    specification = {"config": CONFIG, **layered(layers, params, width, height), "datasets": tables.rows}
    return Chart(title, description, specification)


def picked() -> Json:
    """The opacity of series that are chosen in the legend, and of those that are not."""
    return conditional({"param": PICK}, 1, FAINT)


def span(values: Iterable[float | None], pad: float = 0.06, include: Sequence[float] = ()) -> tuple[float, float]:
    """The range of the finite values, padded by a fraction; never empty."""
    finite = [value for value in (*values, *include) if value is not None and math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:
        return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    return low - pad * (high - low), high + pad * (high - low)


def axis_of(field_name: str, label: str, limits: tuple[float, float], **axis: Any) -> Any:
    scale = {"domain": list(limits), "nice": False, "zero": False}
    title = title_lines(label, "y" if field_name == "y" else "x")
    return channel(f"{field_name}:Q", title=title, scale=scale, axis=axis)


def title_lines(label: str, axis: str) -> list[str] | None:
    """An axis title in lines that fit; None for none."""
    return wrap(label, TITLE_LETTERS[axis]) or None


def name_axis(*, grid: bool = True) -> Json:
    return {"labelLimit": NAME_PIXELS, "labelColor": INK, "labelPadding": 8, "grid": grid}


def legend_columns(longest: int) -> Any:
    """As many columns of a legend as fit its width; `longest` is the length of its longest name."""
    return expression(f"max(1, floor(width / {34 + LETTER * min(longest, NAME_PIXELS / LETTER):.0f}))")


def colour_of(entries: Sequence[tuple[str, int]], *, legend: bool, symbol: str | None) -> Json:
    names = [name for name, _ in entries]
    scale = {"domain": names, "range": [tone(number) for _, number in entries]}
    if not legend:
        return channel("series:N", scale=scale, legend=None)
    look: dict[str, Any] = (
        {"symbolType": symbol} if symbol else {"symbolDash": [], "symbolStrokeWidth": 0, "symbolSize": 60}
    )
    longest = max(map(len, names), default=1)
    return channel("series:N", scale=scale, legend=dict(title=None, columns=legend_columns(longest), **look))


def dash_of(entries: Sequence[tuple[str, int]]) -> Json:
    scale = {"domain": [name for name, _ in entries], "range": [palette.dash(number) for _, number in entries]}
    return channel("series:N", scale=scale, legend=None)


def shape_of(entries: Sequence[tuple[str, int]]) -> Json:
    scale = {"domain": [name for name, _ in entries], "range": [palette.shape(number) for _, number in entries]}
    return channel("series:N", scale=scale)


def event_layers(tables: Tables, events: Sequence[Event], x_label: str, x_range: tuple[float, float]) -> list[Layer]:
    """A dashed vertical line per event, its word beside it, each word in a row of its own."""
    if not events:
        return []
    middle = sum(x_range) / 2
    rows = []
    for number, event in enumerate(events):
        left = event.x > middle  # the word stays inside the plot
        rows.append({"x": event.x, "word": event.word, "dx": -4 if left else 4, "dy": 8 + 12 * number})
    base = tables.chart(rows).encode(x=channel("x:Q", title=title_lines(x_label, "x")))
    words: dict[str, Any] = {
        "dx": expression("datum.dx"),
        "dy": expression("datum.dy"),
        "align": expression("datum.dx < 0 ? 'right' : 'left'"),
    }
    lines = base.mark("rule", color=SOFT, strokeDash=[4, 3], clip=True)
    halo = base.mark("text", **words, stroke=PAPER, strokeWidth=3, color=PAPER).encode(y=constant(0), text="word:N")
    text = base.mark("text", **words, color=INK).encode(y=constant(0), text="word:N")
    return [lines, halo, text]


def label_layers(
    tables: Tables,
    labels: Sequence[Label],
    x: Any,
    y: Any,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    height: int,
) -> list[Layer]:
    """Labels of points on the first side that is clear, with a halo so that lines do not cross them."""
    drawn = [label for label in labels if math.isfinite(label.x) and math.isfinite(label.y)]
    if not any(label.text for label in drawn):
        return []
    rows = [
        {"x": label.x, "y": label.y, "word": label.text, "dx": dx, "dy": dy}
        for label, dx, dy in place_labels(drawn, x_range, y_range, height=height)
    ]
    base = tables.chart(rows).encode(x=x, y=y, text="word:N")
    words: dict[str, Any] = {
        "dx": expression("datum.dx"),
        "dy": expression("datum.dy"),
        "align": expression("datum.dx < 0 ? 'right' : 'left'"),
        "baseline": "middle",
        "limit": NAME_PIXELS,
    }
    return [
        base.mark("text", **words, stroke=PAPER, strokeWidth=3, color=PAPER),
        base.mark("text", **words, color=INK),
    ]
