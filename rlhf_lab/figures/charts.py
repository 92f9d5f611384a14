"""The figures of the reports, as Vega-Lite specifications: curves, frontier, dots with whiskers, spread of samples.

A specification serves the page, where it is interactive, and the static files. Names from data are values of the
chart's rows: none of them becomes an expression, a field or markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import altair as alt

from rlhf_lab.figures import palette
from rlhf_lab.figures.labels import Label, place_labels
from rlhf_lab.figures.palette import GREY, INK, PAPER, SOFT, tone
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.inference import Estimate

Row = dict[str, Any]
Facts = Mapping[str, str]
"""What a tooltip says: title → text."""

FAINT = 0.06
"""Opacity of series that the reader has switched off in the legend."""
NAME_PIXELS = 170
"""Longer names are cut with an ellipsis."""
LETTER = 6.2
"""Width of a letter in figures, px."""
TITLE_LETTERS = {"x": 50, "y": 36}
"""Of a line of an axis title: what fits a telephone."""
CONFIG: dict[str, Any] = {
    "background": None,  # a page has its own; render.py gives one to files
    "font": palette.FONT,
    "padding": 3,
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
    "axisX": {"grid": False, "tickSize": 4, "titleAnchor": "end"},
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
        "layout": {"direction": "vertical", "anchor": "start"},
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
class Point:
    """A point with optional error bars, label and tooltip; infinite bounds are not drawn."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    x_low: float = math.nan
    x_high: float = math.nan
    label: str = ""
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """A named sequence of points. `colour` is an index into the palette; shape and dash follow it."""

    name: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True)
class Level:
    """One line of a dot plot: an estimate, and the single runs behind it. `colour` also chooses the marker.

    Attributes:
        runs: their values.
        run_names: what each run is, such as its seed, in the order of `runs`.
        units: the independent units of the estimate.
    """

    name: str
    estimate: Estimate
    runs: Sequence[float] = field(default_factory=tuple)
    reference: bool = False
    colour: int = 0
    run_names: Sequence[str] = field(default_factory=tuple)
    units: str = "prompts"


@dataclass(frozen=True)
class Event:
    """A vertical line with a word on it."""

    x: float
    word: str


def estimate_facts(name: str, value: Estimate, *, units: str = "prompts") -> dict[str, str]:
    """An estimate for a tooltip: its value, interval, rows and independent units."""
    facts = {name: compact(value.mean)}
    if value.bounded and value.low < value.high:
        facts[f"{100 * value.level:.0f} % interval"] = f"{compact(value.low)} to {compact(value.high)}"
    if value.n:
        facts |= {"n": str(value.n), units: str(value.clusters)}
    return facts


def curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    size: tuple[int, int] = (312, 140),
    legend: bool | None = None,
    events: Sequence[Event] = (),
) -> Chart:
    """Lines over x with a band between each point's low and high.

    Args:
        size: width of the figure and height of its plot, px.
        legend: None shows it for two or more series.
        events: vertical lines.
    """
    rows = _rows(series, {x_label: "x", title: "y"})
    x_range = span([row["x"] for row in rows if row["x"] is not None], pad=0.0)
    shown = [value for row in rows for value in (row["y"], row["low"], row["high"])]
    integers = x_label in ("step", "iteration")
    x = _axis("x", x_label, x_range, tickCount=4, **({"tickMinStep": 1, "format": "~s"} if integers else {}))
    y = _axis("y", y_label, span(shown), tickCount=4)
    entries = [(one.name, one.colour) for one in series]
    colour = _colour(entries, legend=len(series) > 1 if legend is None else legend, symbol="stroke")
    # A point between two gaps has no line to either side.
    single = [row for row, before, after in _neighbours(rows) if before is None and after is None]
    base = alt.Chart(_data(rows))
    layers = [
        base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_area(fillOpacity=0.16, clip=True)
        .encode(x=x, y=alt.Y("low:Q", title=_lines(y_label, "y")), y2="high:Q", color=colour, opacity=_picked()),
        base.mark_line(strokeWidth=1.8, clip=True).encode(
            x=x, y=y, color=colour, strokeDash=_dash(entries), opacity=_picked(), tooltip=_tooltip(rows)
        ),
    ]
    if single:
        marks = alt.Chart(_data(single)).mark_point(filled=True, size=50, clip=True)
        layers.append(marks.encode(x=x, y=y, color=colour, opacity=_picked()))
    layers += _event_layers(events, x_label, x_range)
    return _chart(layers, title, f"{title} over {x_label}: " + "; ".join(map(_ends, series)), *size)


def frontier(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    origin: bool = False,
    integers: bool = False,
    diagonal: tuple[float, float] | None = None,
    description: str = "",
    size: tuple[int, int] = (480, 230),
) -> Chart:
    """Points with error bars in both directions, joined in order.

    Args:
        origin: keep (0, 0) in view, with its horizontal axis.
        integers: only whole numbers are marked on the x axis.
        diagonal: ends of a dashed line on which y equals x.
        description: of the figure; empty names the ends of each series.
        size: width of the figure and height of its plot, px.
    """
    rows = _rows(series, {x_label: "x", y_label: "y"})
    kept = [0.0] if origin else list(diagonal or ())
    x_range = span([row[key] for row in rows for key in ("x", "x_low", "x_high")], include=kept)
    y_range = span([row[key] for row in rows for key in ("y", "low", "high")], pad=0.08, include=kept)
    x = _axis("x", x_label, x_range, **({"tickMinStep": 1, "format": "d"} if integers else {}))
    y = _axis("y", y_label, y_range, tickCount=6)
    entries = [(one.name, one.colour) for one in series]
    colour = _colour(entries, legend=True, symbol=None)
    base = alt.Chart(_data(rows)).encode(color=colour, opacity=_picked())
    bounded_y = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
    bounded_x = base.transform_filter("isValid(datum.x_low) && isValid(datum.x_high)")
    layers = [
        base.mark_line(strokeWidth=1.4, clip=True).encode(x=x, y=y, strokeDash=_dash(entries), order="order:Q"),
        bounded_y.mark_rule(strokeWidth=1.3, clip=True).encode(x=x, y=alt.Y("low:Q", title=_lines(y_label, "y")), y2="high:Q"),
        bounded_x.mark_rule(strokeWidth=1.3, clip=True).encode(x=alt.X("x_low:Q", title=_lines(x_label, "x")), x2="x_high:Q", y=y),
        base.mark_point(filled=True, size=60, clip=True).encode(
            x=x, y=y, shape=_shape(entries), tooltip=_tooltip(rows)
        ),
    ]
    if origin:
        layers.append(alt.Chart(_data([{"y": 0}])).mark_rule(color=SOFT).encode(y=y))
    if diagonal:
        ends = [{"x": end, "y": end} for end in diagonal]
        line = alt.Chart(_data(ends)).mark_line(color=tone(GREY), strokeDash=[6, 3], strokeWidth=1.4, clip=True)
        layers.append(line.encode(x=x, y=y))
    layers += _label_layers([point for one in series for point in one.points], x, y, x_range, y_range, size[1])
    return _chart(layers, title, description or "; ".join(map(_ends, series)), *size)


def dots(levels: Sequence[Level], *, title: str, x_label: str, width: int = 420) -> Chart:
    """One line per level: mean as a dot, interval as a whisker, single runs as faint dots; baseline dotted through."""
    estimates = [level.estimate for level in levels]
    values = [value for level in levels for value in (level.estimate.mean, *level.runs)]
    bounds = [bound for value in estimates if value.bounded for bound in (value.low, value.high)]
    x_range = span(_near(values, bounds))
    names = unique([level.name for level in levels])
    means, runs, missing, references = [], [], [], []
    for name, level in zip(names, levels, strict=True):
        number = GREY if level.reference else level.colour
        look = {"name": name, "colour": tone(number), "shape": palette.shape(level.colour)}
        value = level.estimate
        if not math.isfinite(value.mean):
            missing.append({"name": name, "word": "no result"})
            continue
        bounded = {"low": value.low, "high": value.high} if value.bounded else {"low": None, "high": None}
        facts = {"level": level.name, **estimate_facts(x_label, value, units=level.units)}
        means.append({**look, "x": value.mean, **bounded, "facts": facts})
        if level.reference:
            references.append({"x": value.mean})
        run_names = level.run_names or [""] * len(level.runs)
        for run_name, run in zip(run_names, level.runs, strict=True):
            if math.isfinite(run):
                facts = {"level": level.name, **({"run": run_name} if run_name else {}), x_label: compact(run)}
                runs.append({**look, "x": run, "facts": facts})
    x = _axis("x", x_label, x_range, tickCount=5)
    y = alt.Y("name:N", sort=None, title=None, scale=alt.Scale(domain=names), axis=_name_axis())
    look_channels = {"color": alt.Color("colour:N", scale=None), "shape": alt.Shape("shape:N", scale=None)}
    _set_facts(means)
    _set_facts(runs)
    # The order of the layers: the scales of the first one decide how the levels are sorted.
    layers = [
        alt.Chart(_data(means))
        .transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.3, clip=True)
        .encode(x=_axis("low", x_label, x_range, tickCount=5), x2="high:Q", y=y, color=look_channels["color"]),
        alt.Chart(_data(references)).mark_rule(color=SOFT, strokeDash=[3, 3]).encode(x=x),
        alt.Chart(_data(runs))
        .mark_circle(size=16, fillOpacity=0.55, opacity=1, yOffset=8, clip=True)
        .encode(x=x, y=y, color=look_channels["color"], tooltip=_tooltip(runs)),
        alt.Chart(_data(means))
        .mark_point(filled=True, size=60, opacity=1, clip=True)
        .encode(x=x, y=y, **look_channels, tooltip=_tooltip(means)),
    ]
    if missing:
        words = alt.Chart(_data(missing)).mark_text(align="left", color=SOFT, dx=6)
        layers.append(words.encode(x=alt.value(0), y=y, text="word:N"))
    description = "; ".join(f"{level.name}: {compact(level.estimate)}" for level in levels)
    return _chart(layers, title, description, width, alt.Step(30), zoom=("x",), legend=False)


def spread(rows: Mapping[str, Sequence[float]], *, title: str, x_label: str, width: int = 480) -> Chart:
    """Quantiles of samples per row: 5-95 % as a line, 25-75 % as a bar, the median as a tick. `rows` holds the five."""
    names = list(rows)
    drawn: list[Row] = []
    for name, (low, start, middle, end, high) in rows.items():
        facts = {
            "of": name,
            "median": compact(middle),
            "25 to 75 %": f"{compact(start)} to {compact(end)}",
            "5 to 95 %": f"{compact(low)} to {compact(high)}",
        }
        numbers = {"low": low, "start": start, "x": middle, "end": end, "high": high}
        drawn.append({"name": name, **numbers, "facts": facts})
    _set_facts(drawn)
    x_range = span([value for five in rows.values() for value in five])
    y = alt.Y("name:N", sort=None, title=None, scale=alt.Scale(domain=names), axis=_name_axis(grid=False))
    base = alt.Chart(_data(drawn)).encode(y=y)
    layers = [
        base.mark_rule(color=tone(0), strokeWidth=1.3, clip=True).encode(
            x=_axis("low", x_label, x_range, tickCount=5), x2="high:Q"
        ),
        base.mark_bar(color=tone(0), fillOpacity=0.35, height=12, cornerRadius=2, clip=True).encode(
            x=alt.X("start:Q", title=_lines(x_label, "x")), x2="end:Q"
        ),
        base.mark_tick(color=tone(0), thickness=2.4, height=16, clip=True).encode(
            x=alt.X("x:Q", title=_lines(x_label, "x")), tooltip=_tooltip(drawn)
        ),
    ]
    description = "; ".join(f"{name}: median {compact(five[2])}" for name, five in rows.items())
    return _chart(layers, title, description, width, alt.Step(26), zoom=("x",), legend=False)


def gain_curves(
    points: Sequence[Row],
    fits: Sequence[Row],
    levels: Sequence[str],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    size: tuple[int, int] = (600, 300),
) -> Chart:
    """Single policies and fitted curves by level: gold as filled marks and solid lines, proxy as crosses and dashes.

    Args:
        points, fits: rows with series (the level), metric ("gold" or "proxy"), x, y; points also have `facts`.
        levels: in the order of the palette.
    """
    x_range = span([0.0, *(row["x"] for row in points)], pad=0.03)
    x = _axis("x", x_label, x_range)
    y = _axis("y", y_label, span([row["y"] for row in points], include=[0.0]), tickCount=7)
    colour = _colour([(level, number) for number, level in enumerate(levels)], legend=True, symbol="circle")
    _set_facts(points)
    kinds = ["gold", "proxy"]
    dashes = alt.StrokeDash(
        "metric:N",
        scale=alt.Scale(domain=kinds, range=[[1, 0], [5, 4]]),
        legend=alt.Legend(
            title=None,
            symbolType="stroke",
            symbolStrokeColor=INK,
            labelExpr="datum.label == 'gold' ? 'gold: solid line, filled marks' : 'proxy: dashed line, crosses'",
            columns=_columns(30),
        ),
    )
    metric_points = {kind: _data([row for row in points if row["metric"] == kind]) for kind in kinds}
    cross = alt.Chart(metric_points["proxy"]).mark_point(
        shape="M-1,-1L1,1M1,-1L-1,1", size=24, strokeOpacity=0.6, clip=True
    )
    filled = alt.Chart(metric_points["gold"]).mark_point(filled=True, size=26, fillOpacity=0.45, clip=True)
    lines = alt.Chart(_data(fits))
    layers = [
        cross.encode(x=x, y=y, color=colour, opacity=_picked(), tooltip=_tooltip(points)),
        filled.encode(x=x, y=y, color=colour, opacity=_picked(), tooltip=_tooltip(points)),
        lines.mark_line(clip=True).encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=dashes,
            strokeWidth=alt.condition("datum.metric == 'gold'", alt.value(2.2), alt.value(1.3)),
            opacity=_picked(),
        ),
        alt.Chart(_data([{"y": 0}])).mark_rule(color=SOFT).encode(y=y),
    ]
    return _chart(layers, title, description, *size)


def span(values: Iterable[float | None], pad: float = 0.06, include: Sequence[float] = ()) -> tuple[float, float]:
    """The range of the finite values, padded by a fraction; never empty."""
    finite = [value for value in (*values, *include) if value is not None and math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:
        return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    return low - pad * (high - low), high + pad * (high - low)


def unique(names: Sequence[str]) -> list[str]:
    """The names, a repeated one with its number: two rows of a chart with one name would fall on one another."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return distinct


def _chart(
    layers: Sequence[alt.Chart],
    title: str,
    description: str,
    width: int,
    height: int | alt.Step,
    *,
    zoom: Sequence[str] = ("x", "y"),
    legend: bool = True,
) -> Chart:
    """The layers with what a reader can do: pan and zoom, and choose series in the legend."""
    # The wheel alone scrolls the page.
    params = [alt.selection_interval(name="zoom", bind="scales", encodings=list(zoom), zoom="wheel![event.ctrlKey]")]
    if legend:
        params.append(_pick())
    first, *others = layers
    layered = alt.layer(first.add_params(*params), *others).properties(
        width=width, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    )
    return Chart(title, description, layered.to_dict() | {"config": CONFIG})


def _pick() -> alt.Parameter:
    """The series chosen in the legend; none chosen shows all. Each click adds or removes one."""
    return alt.selection_point(name="pick", fields=["series"], bind="legend", toggle="true")


def _picked() -> Any:
    return alt.condition(_pick(), alt.value(1), alt.value(FAINT))


def _data(rows: Sequence[Row]) -> alt.InlineData:
    """Rows for Vega, without numbers that are not finite; y stays, as null, because it breaks a line."""
    cleaned = []
    for row in rows:
        values = {key: _json_value(value) for key, value in row.items() if key != "facts"}
        cleaned.append({key: value for key, value in values.items() if value is not None or key == "y"})
    return alt.InlineData(values=cleaned)


def _json_value(value: Any) -> Any:
    if isinstance(value, (str, type(None))):
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def _rows(series: Sequence[Series], axes: Mapping[str, str]) -> list[Row]:
    """A row per point. Without facts of its own a point's tooltip has its place on the axes.

    Args:
        axes: title → "x" or "y".
    """
    rows: list[Row] = []
    for one in series:
        for order, point in enumerate(one.points):
            interval = {"low": point.low, "high": point.high}
            if not (math.isfinite(point.low) and math.isfinite(point.high)):
                interval = {"low": math.nan, "high": math.nan}
            x_interval = {"x_low": point.x_low, "x_high": point.x_high}
            if not (math.isfinite(point.x_low) and math.isfinite(point.x_high)):
                x_interval = {"x_low": math.nan, "x_high": math.nan}
            place = {title: compact(getattr(point, axis)) for title, axis in axes.items()}
            facts = {"series": one.name, **(point.facts or place)}
            numbers = {"order": order, "x": point.x, "y": point.y, **interval, **x_interval}
            cleaned = {key: _json_value(value) for key, value in numbers.items()}
            rows.append({"series": one.name, **cleaned, "facts": facts})
    _set_facts(rows)
    return rows


def _set_facts(rows: Sequence[Row]) -> None:
    """Give every row its facts as fields t0, t1, …, in one order for all rows; "–" where a row has none."""
    titles = _titles(rows)
    for row in rows:
        row |= {f"t{number}": row["facts"].get(title, "–") for number, title in enumerate(titles)}


def _titles(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(title for row in rows for title in row["facts"]))


def _tooltip(rows: Sequence[Row]) -> list[alt.Tooltip]:
    """The fields of a tooltip, see `_set_facts`."""
    return [alt.Tooltip(f"t{number}:N", title=title) for number, title in enumerate(_titles(rows))]


def _axis(field_name: str, label: str, limits: tuple[float, float], **axis: Any) -> Any:
    channel = alt.Y if field_name == "y" else alt.X
    scale = alt.Scale(domain=list(limits), nice=False, zero=False)
    title = _lines(label, "y" if field_name == "y" else "x")
    return channel(f"{field_name}:Q", title=title, scale=scale, axis=alt.Axis(**axis))


def _lines(label: str, axis: str) -> list[str] | None:
    """An axis title in lines that fit; None for none."""
    return wrap(label, TITLE_LETTERS[axis]) or None


def _name_axis(*, grid: bool = True) -> alt.Axis:
    return alt.Axis(labelLimit=NAME_PIXELS, labelColor=INK, labelPadding=8, grid=grid)


def _columns(longest: int) -> Any:
    """As many columns of a legend as fit its width; `longest` is the length of its longest name."""
    return alt.expr(f"max(1, floor(width / {34 + LETTER * min(longest, NAME_PIXELS / LETTER):.0f}))")


def _colour(entries: Sequence[tuple[str, int]], *, legend: bool, symbol: str | None) -> alt.Color:
    names = [name for name, _ in entries]
    scale = alt.Scale(domain=names, range=[tone(number) for _, number in entries])
    if not legend:
        return alt.Color("series:N", scale=scale, legend=None)
    look = {"symbolType": symbol} if symbol else {"symbolDash": [], "symbolStrokeWidth": 0, "symbolSize": 60}
    longest = max(map(len, names), default=1)
    return alt.Color("series:N", scale=scale, legend=alt.Legend(title=None, columns=_columns(longest), **look))


def _dash(entries: Sequence[tuple[str, int]]) -> alt.StrokeDash:
    scale = alt.Scale(domain=[name for name, _ in entries], range=[palette.dash(number) for _, number in entries])
    return alt.StrokeDash("series:N", scale=scale, legend=None)


def _shape(entries: Sequence[tuple[str, int]]) -> alt.Shape:
    scale = alt.Scale(domain=[name for name, _ in entries], range=[palette.shape(number) for _, number in entries])
    return alt.Shape("series:N", scale=scale)


def _event_layers(events: Sequence[Event], x_label: str, x_range: tuple[float, float]) -> list[alt.Chart]:
    """A dashed vertical line per event, its word beside it, each word in a row of its own."""
    if not events:
        return []
    middle = sum(x_range) / 2
    rows = []
    for number, event in enumerate(events):
        left = event.x > middle  # the word stays inside the plot
        rows.append({"x": event.x, "word": event.word, "dx": -4 if left else 4, "dy": 8 + 12 * number})
    base = alt.Chart(_data(rows)).encode(x=alt.X("x:Q", title=_lines(x_label, "x")))
    words = {
        "dx": alt.expr("datum.dx"),
        "dy": alt.expr("datum.dy"),
        "align": alt.expr("datum.dx < 0 ? 'right' : 'left'"),
    }
    lines = base.mark_rule(color=SOFT, strokeDash=[4, 3], clip=True)
    halo = base.mark_text(**words, stroke=PAPER, strokeWidth=3, color=PAPER).encode(y=alt.value(0), text="word:N")
    text = base.mark_text(**words, color=INK).encode(y=alt.value(0), text="word:N")
    return [lines, halo, text]


def _label_layers(
    points: Sequence[Point], x: Any, y: Any, x_range: tuple[float, float], y_range: tuple[float, float], height: int
) -> list[alt.Chart]:
    """Labels of points on the first side that is clear, with a halo so that lines do not cross them."""
    labels = [
        Label(point.x, point.y, point.label) for point in points if math.isfinite(point.x) and math.isfinite(point.y)
    ]
    if not any(label.text for label in labels):
        return []
    rows = [
        {"x": label.x, "y": label.y, "word": label.text, "dx": dx, "dy": dy}
        for label, dx, dy in place_labels(labels, x_range, y_range, height=height)
    ]
    base = alt.Chart(_data(rows)).encode(x=x, y=y, text="word:N")
    words = {
        "dx": alt.expr("datum.dx"),
        "dy": alt.expr("datum.dy"),
        "align": alt.expr("datum.dx < 0 ? 'right' : 'left'"),
        "baseline": "middle",
        "limit": NAME_PIXELS,
    }
    return [
        base.mark_text(**words, stroke=PAPER, strokeWidth=3, color=PAPER),
        base.mark_text(**words, color=INK),
    ]


def _neighbours(rows: Sequence[Row]) -> list[tuple[Row, float | None, float | None]]:
    """Each row that has a value, with the values before and after it in its series; None where there is none."""
    found = []
    for number, row in enumerate(rows):
        if row["y"] is None:
            continue
        before, after = (
            rows[place]["y"] if 0 <= place < len(rows) and rows[place]["series"] == row["series"] else None
            for place in (number - 1, number + 1)
        )
        found.append((row, before, after))
    return found


def _near(values: Sequence[float], bounds: Sequence[float]) -> list[float]:
    """Values plus bounds, where bounds reach at most twice the spread beyond them: two seeds give huge intervals."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return list(bounds)
    low, high = min(finite), max(finite)
    room = 2 * (high - low) or math.inf
    return finite + [min(max(bound, low - room), high + room) for bound in bounds]


def _ends(series: Series) -> str:
    if not series.points:
        return f"{series.name}: no points"
    return f"{series.name} from {compact(series.points[0].y)} to {compact(series.points[-1].y)}"
