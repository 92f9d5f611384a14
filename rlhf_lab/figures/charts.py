"""Figures of the reports as Vega-Lite specifications: curves, frontier, dots with whiskers, quantiles of samples.

A specification is used both for the page, where it is interactive, and for the static files. Names from data are only
values of the chart's rows; they never become an expression, a field or markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_lab.figures import palette
from rlhf_lab.figures.labels import TextLabel
from rlhf_lab.figures.layers import (
    Chart,
    EventMark,
    axis_of,
    colour_of,
    dash_of,
    event_layers,
    finish,
    label_layers,
    legend_columns,
    name_axis,
    picked,
    shape_of,
    span,
    title_lines,
    whole_ticks,
)
from rlhf_lab.figures.palette import GREY, INK, SOFT, light_colour
from rlhf_lab.figures.vegalite import Row, Tables, Tooltip, channel, set_summary, to_number_or_text, tooltip
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.inference import Estimate


@dataclass(frozen=True)
class Point:
    """Point with optional error bars, label and tooltip; infinite bounds are omitted.

    Attributes:
        x, y: position in data units.
        low, high: bounds of y; NaN without an interval.
        x_low, x_high: bounds of x; NaN without an interval.
        tooltip: title → text; empty shows the position.
        joined: True if the point is on the line of its series.
    """

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    x_low: float = math.nan
    x_high: float = math.nan
    label: str = ""
    tooltip: Tooltip = field(default_factory=dict)
    joined: bool = True


@dataclass(frozen=True)
class Series:
    """Named sequence of points. `colour` is an index into the palette and also determines marker shape and dashes."""

    name: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True)
class Level:
    """Row of a dot plot: an estimate, and the single runs behind it.

    Attributes:
        reference: True for the baseline, which is grey.
        colour: index into the palette; it also determines the marker.
        run_names: name of each run, such as its seed, in the order of `runs`.
        units: name of the independent units of the estimate.
    """

    name: str
    estimate: Estimate
    runs: Sequence[float] = field(default_factory=tuple)
    reference: bool = False
    colour: int = 0
    run_names: Sequence[str] = field(default_factory=tuple)
    units: str = "prompts"


def estimate_tooltip(name: str, value: Estimate, *, units: str = "prompts") -> dict[str, str]:
    """Return an estimate as tooltip entries: its value, interval, rows and independent units."""
    tooltip = {name: compact(value.mean)}
    if value.bounded and value.low < value.high:
        title = f"{100 * value.level:.0f} % interval"
        tooltip[title] = f"{compact(value.low)} to {compact(value.high)}"
    if value.n:
        tooltip |= {"n": str(value.n), units: str(value.clusters)}
    return tooltip


def curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    size: tuple[int, int] = (312, 140),
    legend: bool | None = None,
    events: Sequence[EventMark] = (),
) -> Chart:
    """Plot lines over x with a band between each point's low and high.

    Args:
        title: title of the figure, which also names y in the tooltip.
        size: width of the figure and height of its plot, px.
        legend: None shows a legend for two or more series.
    """
    rows = _rows(series, {x_label: "x", title: "y"})
    # Without padding, the curves reach both edges of the plot.
    x_range = span([row["x"] for row in rows if row["x"] is not None], pad=0.0)
    shown = [value for row in rows for value in (row["y"], row["low"], row["high"])]
    # Steps and iterations are integers, so ticks at fractions would be misleading.
    integers = x_label in ("step", "iteration")
    ticks = whole_ticks(x_range, "~s") if integers else {}
    x = axis_of("x", x_label, x_range, tickCount=4, **ticks)
    y = axis_of("y", y_label, span(shown), tickCount=4)
    entries = [(one.name, one.colour) for one in series]
    shows_legend = len(series) > 1 if legend is None else legend
    colour = colour_of(entries, legend=shows_legend, symbol="stroke")
    single = _single_points(rows)
    tables = Tables()
    base = tables.chart(rows)
    low = channel("low:Q", title=title_lines(y_label, "y"))
    layers = [
        base.where("isValid(datum.low) && isValid(datum.high)")
        .mark("area", fillOpacity=0.16, clip=True)
        .encode(x=x, y=low, y2="high:Q", color=colour, opacity=picked()),
        base.mark("line", strokeWidth=1.8, clip=True).encode(
            x=x, y=y, color=colour, strokeDash=dash_of(entries), opacity=picked(), tooltip=tooltip(rows)
        ),
    ]
    if single:  # a line needs two neighbours, so single points need a marker to be visible
        marks = tables.chart(single).mark("point", filled=True, size=50, clip=True)
        layers.append(marks.encode(x=x, y=y, color=colour, opacity=picked()))
    layers += event_layers(tables, events, x_label, x_range)
    description = f"{title} over {x_label}: " + "; ".join(map(_ends, series))
    return finish(tables, layers, title, description, *size)


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
    """Plot points with error bars in both directions; joined points are connected in order by the line of their series.

    Args:
        origin: True keeps (0, 0) in view, with its horizontal axis.
        integers: True marks only integers on the x axis.
        diagonal: ends of a dashed line on which y equals x.
        description: description of the figure; empty describes the ends of each series.
        size: width of the figure and height of its plot, px.
    """
    rows = _rows(series, {x_label: "x", y_label: "y"})
    kept = [0.0] if origin else list(diagonal or ())
    x_range = span([row[key] for row in rows for key in ("x", "x_low", "x_high")], include=kept)
    y_range = span([row[key] for row in rows for key in ("y", "low", "high")], pad=0.08, include=kept)
    ticks = whole_ticks(x_range, "d") if integers else {}
    x = axis_of("x", x_label, x_range, **ticks)
    y = axis_of("y", y_label, y_range, tickCount=6)
    entries = [(one.name, one.colour) for one in series]
    colour = colour_of(entries, legend=True, symbol=None)
    tables = Tables()
    base = tables.chart(rows).encode(color=colour, opacity=picked())
    # All layers give an axis the same title; otherwise Vega-Lite would list the fields of every layer.
    low = channel("low:Q", title=title_lines(y_label, "y"))
    x_low = channel("x_low:Q", title=title_lines(x_label, "x"))
    # Points without a line are excluded from the line mark only.
    line = base.where("!datum.apart") if any(row.get("apart") for row in rows) else base
    bounded_y = base.where("isValid(datum.low) && isValid(datum.high)")
    bounded_x = base.where("isValid(datum.x_low) && isValid(datum.x_high)")
    layers = [
        line.mark("line", strokeWidth=1.4, clip=True).encode(x=x, y=y, strokeDash=dash_of(entries), order="order:Q"),
        bounded_y.mark("rule", strokeWidth=1.3, clip=True).encode(x=x, y=low, y2="high:Q"),
        bounded_x.mark("rule", strokeWidth=1.3, clip=True).encode(x=x_low, x2="x_high:Q", y=y),
        base.mark("point", filled=True, size=60, clip=True).encode(
            x=x, y=y, shape=shape_of(entries), tooltip=tooltip(rows)
        ),
    ]
    if origin:
        layers.append(tables.chart([{"y": 0}]).mark("rule", color=SOFT).encode(y=y))
    if diagonal:
        ends = [{"x": end, "y": end} for end in diagonal]
        equal = tables.chart(ends).mark("line", color=light_colour(GREY), strokeDash=[6, 3], strokeWidth=1.4, clip=True)
        layers.append(equal.encode(x=x, y=y))
    all_points = [point for one in series for point in one.points]
    labels = [TextLabel(point.x, point.y, point.label) for point in all_points]
    layers += label_layers(tables, labels, x, y, x_range, y_range, size[1])
    return finish(tables, layers, title, description or "; ".join(map(_ends, series)), *size)


def dot_chart(levels: Sequence[Level], *, title: str, x_label: str, width: int = 420) -> Chart:
    """Plot one row per level: mean as a dot, interval as a whisker, single runs as faint dots, baseline dotted."""
    estimates = [level.estimate for level in levels]
    values = [value for level in levels for value in (level.estimate.mean, *level.runs)]
    bounds = [bound for value in estimates if value.bounded for bound in (value.low, value.high)]
    x_range = span(_near(values, bounds))
    names = unique([level.name for level in levels])
    means: list[Row] = []
    runs: list[Row] = []
    for name, level in zip(names, levels, strict=True):
        means += _mean_rows(name, level, x_label)
        runs += _run_rows(name, level, x_label)
    with_result = {row["name"] for row in means}
    # A level without a result keeps its row, with a note instead of marks.
    missing = [{"name": name, "word": "no result"} for name in names if name not in with_result]
    # The dotted line passes through the mean of each baseline, which is grey.
    references = [{"x": row["x"]} for row in means if row["colour"] == light_colour(GREY)]
    x = axis_of("x", x_label, x_range, tickCount=5)
    y = channel("name:N", sort=None, title=None, scale={"domain": names}, axis=name_axis())
    colour, shape = channel("colour:N", scale=None), channel("shape:N", scale=None)
    set_summary(means)
    set_summary(runs)
    tables = Tables()
    # The order of the layers matters: the scales of the first one determine the order of the levels.
    layers = [
        tables.chart(means)
        .where("isValid(datum.low)")
        .mark("rule", strokeWidth=1.3, clip=True)
        .encode(x=axis_of("low", x_label, x_range, tickCount=5), x2="high:Q", y=y, color=colour),
        tables.chart(references).mark("rule", color=SOFT, strokeDash=[3, 3]).encode(x=x),
        tables.chart(runs)
        .mark("circle", size=16, fillOpacity=0.55, opacity=1, yOffset=8, clip=True)
        .encode(x=x, y=y, color=colour, tooltip=tooltip(runs)),
        tables.chart(means)
        .mark("point", filled=True, size=60, opacity=1, clip=True)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip(means)),
    ]
    if missing:
        words = tables.chart(missing).mark("text", align="left", color=SOFT, dx=6)
        layers.append(words.encode(x={"value": 0}, y=y, text="word:N"))
    description = "; ".join(f"{level.name}: {compact(level.estimate)}" for level in levels)
    return finish(tables, layers, title, description, width, {"step": 30}, zoom=("x",), legend=False)


def _style_row(name: str, level: Level) -> Row:
    number = GREY if level.reference else level.colour
    return {"name": name, "colour": light_colour(number), "shape": palette.shape(level.colour)}


def _mean_rows(name: str, level: Level, x_label: str) -> list[Row]:
    """Return the row of a level's estimate; none if it has no result."""
    value = level.estimate
    if not math.isfinite(value.mean):
        return []
    bounds = {"low": value.low, "high": value.high} if value.bounded else {}
    tooltip = {"level": level.name, **estimate_tooltip(x_label, value, units=level.units)}
    return [{**_style_row(name, level), "x": value.mean, **bounds, "facts": tooltip}]


def _run_rows(name: str, level: Level, x_label: str) -> list[Row]:
    rows = []
    for run_name, run in zip(level.run_names or [""] * len(level.runs), level.runs, strict=True):
        tooltip = {"level": level.name, "run": run_name or "–", x_label: compact(run)}
        if math.isfinite(run):
            rows.append({**_style_row(name, level), "x": run, "facts": tooltip})
    return rows


def spread(rows: Mapping[str, Sequence[float]], *, title: str, x_label: str, width: int = 480) -> Chart:
    """Plot quantiles of samples per row: 5-95 % as a line, 25-75 % as a bar, the median as a tick.

    Args:
        rows: name → the 5, 25, 50, 75 and 95 % quantiles.
    """
    names = list(rows)
    rendered: list[Row] = []
    for name, (low, start, middle, end, high) in rows.items():
        facts = {
            "of": name,
            "median": compact(middle),
            "25 to 75 %": f"{compact(start)} to {compact(end)}",
            "5 to 95 %": f"{compact(low)} to {compact(high)}",
        }
        numbers = {"low": low, "start": start, "x": middle, "end": end, "high": high}
        rendered.append({"name": name, **numbers, "facts": facts})
    set_summary(rendered)
    x_range = span([value for five in rows.values() for value in five])
    y = channel("name:N", sort=None, title=None, scale={"domain": names}, axis=name_axis(grid=False))
    tables = Tables()
    base = tables.chart(rendered).encode(y=y)
    layers = [
        base.mark("rule", color=light_colour(0), strokeWidth=1.3, clip=True).encode(
            x=axis_of("low", x_label, x_range, tickCount=5), x2="high:Q"
        ),
        base.mark("bar", color=light_colour(0), fillOpacity=0.35, height=12, cornerRadius=2, clip=True).encode(
            x=channel("start:Q", title=title_lines(x_label, "x")), x2="end:Q"
        ),
        base.mark("tick", color=light_colour(0), thickness=2.4, height=16, clip=True).encode(
            x=channel("x:Q", title=title_lines(x_label, "x")), tooltip=tooltip(rendered)
        ),
    ]
    description = "; ".join(f"{name}: median {compact(five[2])}" for name, five in rows.items())
    return finish(tables, layers, title, description, width, {"step": 26}, zoom=("x",), legend=False)


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
    """Plot single policies and fitted curves by level: gold as filled marks and solid lines, proxy as crosses, dashed.

    Args:
        points, fits: rows with series (the level), metric ("gold" or "proxy"), x, y; points also have `facts`.
        levels: levels in the order of the palette.
        size: width of the figure and height of its plot, px.
    """
    x_range = span([0.0, *(row["x"] for row in points)], pad=0.03)
    x = axis_of("x", x_label, x_range)
    y = axis_of("y", y_label, span([row["y"] for row in points], include=[0.0]), tickCount=7)
    level_colours = [(level, index) for index, level in enumerate(levels)]
    colour = colour_of(level_colours, legend=True, symbol="circle")
    set_summary(points)
    # The order fixes which dash pattern belongs to which metric.
    kinds = ["gold", "proxy"]
    dashes = channel(
        "metric:N",
        scale={"domain": kinds, "range": [[1, 0], [5, 4]]},
        legend={
            "title": None,
            "orient": "bottom",
            "symbolType": "stroke",
            "symbolStrokeColor": INK,
            "labelExpr": "datum.label == 'gold' ? 'gold: solid line, filled marks' : 'proxy: dashed line, crosses'",
            "columns": legend_columns(30),
        },
    )
    gold_points, proxy_points = ([row for row in points if row["metric"] == kind] for kind in kinds)
    tables = Tables()
    # Crosses for proxy and discs for gold are distinguishable without colour.
    cross = tables.chart(proxy_points).mark(
        "point", shape="M-1,-1L1,1M1,-1L-1,1", size=24, strokeOpacity=0.6, clip=True
    )
    filled = tables.chart(gold_points).mark("point", filled=True, size=26, fillOpacity=0.45, clip=True)
    lines = tables.chart(fits)
    layers = [
        cross.encode(x=x, y=y, color=colour, opacity=picked(), tooltip=tooltip(points)),
        filled.encode(x=x, y=y, color=colour, opacity=picked(), tooltip=tooltip(points)),
        lines.mark("line", clip=True).encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=dashes,
            strokeWidth={"condition": {"test": "datum.metric == 'gold'", "value": 2.2}, "value": 1.3},
            opacity=picked(),
        ),
        tables.chart([{"y": 0}]).mark("rule", color=SOFT).encode(y=y),
    ]
    return finish(tables, layers, title, description, *size)


def unique(names: Sequence[str]) -> list[str]:
    """Return the names with a number appended to repeated ones, because rows with equal names would overlap."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return distinct


def _rows(series: Sequence[Series], axes: Mapping[str, str]) -> list[Row]:
    """Return one row per point. If a point has no tooltip, its position on the axes is used.

    Args:
        axes: title of an axis → "x" or "y".
    """
    rows: list[Row] = []
    for one in series:
        for order, point in enumerate(one.points):
            numbers = {"order": order, "x": point.x, "y": point.y}
            for low, high in (("low", "high"), ("x_low", "x_high")):
                bounds = getattr(point, low), getattr(point, high)
                # An interval with one infinite end is not drawn at all.
                numbers[low], numbers[high] = bounds if all(map(math.isfinite, bounds)) else (math.nan, math.nan)
            position = {title: compact(getattr(point, axis)) for title, axis in axes.items()}
            tooltip = {"series": one.name, **(point.tooltip or position)}
            cleaned = {key: to_number_or_text(value) for key, value in numbers.items()}
            separate = {} if point.joined else {"apart": True}
            rows.append({"series": one.name, **cleaned, **separate, "facts": tooltip})
    set_summary(rows)
    return rows


def _single_points(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without a neighbour in their series that has a value: no line leads to them."""

    def has_value(position: int, series: str) -> bool:
        is_row = 0 <= position < len(rows)
        return is_row and rows[position]["series"] == series and rows[position]["y"] is not None

    return [
        row
        for position, row in enumerate(rows)
        if has_value(position, row["series"])
        and not has_value(position - 1, row["series"])
        and not has_value(position + 1, row["series"])
    ]


def _near(values: Sequence[float], bounds: Sequence[float]) -> list[float]:
    """Return values plus bounds, limited to twice the range of the values, because two seeds give huge intervals."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return list(bounds)
    low, high = min(finite), max(finite)
    # A single value has no range, so it does not limit the bounds.
    capacity = 2 * (high - low) or math.inf
    return finite + [min(max(bound, low - capacity), high + capacity) for bound in bounds]


def _ends(series: Series) -> str:
    """Describe a series in words: first and last value of its line, and the range of its single points."""
    if not series.points:
        return f"{series.name}: no points"
    # Only joined points have an order, so the others are described by their range.
    joined = [point for point in series.points if point.joined]
    separate = [point.y for point in series.points if not point.joined]
    parts = []
    if joined:
        first, last = compact(joined[0].y), compact(joined[-1].y)
        parts.append(f"from {first} to {last}")
    if separate:
        lowest, highest = compact(min(separate)), compact(max(separate))
        parts.append(f"{len(separate)} points without a line, {lowest} to {highest}")
    return f"{series.name} {', '.join(parts)}"
