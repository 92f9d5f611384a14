"""The figures of the reports, as Vega-Lite specifications: curves, frontier, dots with whiskers, spread of samples.

A specification serves the page, where it is interactive, and the static files. Names from data are values of the
chart's rows: none of them becomes an expression, a field or markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_lab.figures import palette
from rlhf_lab.figures.labels import Label
from rlhf_lab.figures.layers import (
    Chart,
    Event,
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
)
from rlhf_lab.figures.palette import GREY, INK, SOFT, tone
from rlhf_lab.figures.tables import Facts, Row, Tables, plain, set_facts, tooltip
from rlhf_lab.figures.vegalite import channel, conditional, constant, step
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.inference import Estimate


@dataclass(frozen=True)
class Point:
    """A point with optional error bars, label and tooltip; infinite bounds are not drawn.

    Attributes:
        joined: whether the line of its series goes through it.
    """

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    x_low: float = math.nan
    x_high: float = math.nan
    label: str = ""
    facts: Facts = field(default_factory=dict)
    joined: bool = True


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
    x = axis_of("x", x_label, x_range, tickCount=4, **({"tickMinStep": 1, "format": "~s"} if integers else {}))
    y = axis_of("y", y_label, span(shown), tickCount=4)
    entries = [(one.name, one.colour) for one in series]
    colour = colour_of(entries, legend=len(series) > 1 if legend is None else legend, symbol="stroke")
    single = _single_points(rows)
    tables = Tables()
    base = tables.chart(rows)
    layers = [
        base.where("isValid(datum.low) && isValid(datum.high)")
        .mark("area", fillOpacity=0.16, clip=True)
        .encode(x=x, y=channel("low:Q", title=title_lines(y_label, "y")), y2="high:Q", color=colour, opacity=picked()),
        base.mark("line", strokeWidth=1.8, clip=True).encode(
            x=x, y=y, color=colour, strokeDash=dash_of(entries), opacity=picked(), tooltip=tooltip(rows)
        ),
    ]
    if single:
        marks = tables.chart(single).mark("point", filled=True, size=50, clip=True)
        layers.append(marks.encode(x=x, y=y, color=colour, opacity=picked()))
    layers += event_layers(tables, events, x_label, x_range)
    return finish(tables, layers, title, f"{title} over {x_label}: " + "; ".join(map(_ends, series)), *size)


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
    """Points with error bars in both directions; those that are joined by the line of their series, in order.

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
    x = axis_of("x", x_label, x_range, **({"tickMinStep": 1, "format": "d"} if integers else {}))
    y = axis_of("y", y_label, y_range, tickCount=6)
    entries = [(one.name, one.colour) for one in series]
    colour = colour_of(entries, legend=True, symbol=None)
    tables = Tables()
    base = tables.chart(rows).encode(color=colour, opacity=picked())
    # All layers give an axis the same title: Vega-Lite would name every field of them.
    low = channel("low:Q", title=title_lines(y_label, "y"))
    x_low = channel("x_low:Q", title=title_lines(x_label, "x"))
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
        equal = tables.chart(ends).mark("line", color=tone(GREY), strokeDash=[6, 3], strokeWidth=1.4, clip=True)
        layers.append(equal.encode(x=x, y=y))
    labels = [Label(point.x, point.y, point.label) for one in series for point in one.points]
    layers += label_layers(tables, labels, x, y, x_range, y_range, size[1])
    return finish(tables, layers, title, description or "; ".join(map(_ends, series)), *size)


def dots(levels: Sequence[Level], *, title: str, x_label: str, width: int = 420) -> Chart:
    """One line per level: mean as a dot, interval as a whisker, single runs as faint dots; baseline dotted through."""
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
    missing = [{"name": name, "word": "no result"} for name in names if name not in with_result]
    references = [{"x": row["x"]} for row in means if row["colour"] == tone(GREY)]
    x = axis_of("x", x_label, x_range, tickCount=5)
    y = channel("name:N", sort=None, title=None, scale={"domain": names}, axis=name_axis())
    colour, shape = channel("colour:N", scale=None), channel("shape:N", scale=None)
    set_facts(means)
    set_facts(runs)
    tables = Tables()
    # The order of the layers: the scales of the first one decide how the levels are sorted.
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
        layers.append(words.encode(x=constant(0), y=y, text="word:N"))
    description = "; ".join(f"{level.name}: {compact(level.estimate)}" for level in levels)
    return finish(tables, layers, title, description, width, step(30), zoom=("x",), legend=False)


def _look(name: str, level: Level) -> Row:
    """The row of a level and how its marks look."""
    number = GREY if level.reference else level.colour
    return {"name": name, "colour": tone(number), "shape": palette.shape(level.colour)}


def _mean_rows(name: str, level: Level, x_label: str) -> list[Row]:
    """The row of a level's estimate; none where it has no result."""
    value = level.estimate
    if not math.isfinite(value.mean):
        return []
    bounds = {"low": value.low, "high": value.high} if value.bounded else {}
    facts = {"level": level.name, **estimate_facts(x_label, value, units=level.units)}
    return [{**_look(name, level), "x": value.mean, **bounds, "facts": facts}]


def _run_rows(name: str, level: Level, x_label: str) -> list[Row]:
    """A row per single run of a level."""
    rows = []
    for run_name, run in zip(level.run_names or [""] * len(level.runs), level.runs, strict=True):
        facts = {"level": level.name, "run": run_name or "–", x_label: compact(run)}
        if math.isfinite(run):
            rows.append({**_look(name, level), "x": run, "facts": facts})
    return rows


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
    set_facts(drawn)
    x_range = span([value for five in rows.values() for value in five])
    y = channel("name:N", sort=None, title=None, scale={"domain": names}, axis=name_axis(grid=False))
    tables = Tables()
    base = tables.chart(drawn).encode(y=y)
    layers = [
        base.mark("rule", color=tone(0), strokeWidth=1.3, clip=True).encode(
            x=axis_of("low", x_label, x_range, tickCount=5), x2="high:Q"
        ),
        base.mark("bar", color=tone(0), fillOpacity=0.35, height=12, cornerRadius=2, clip=True).encode(
            x=channel("start:Q", title=title_lines(x_label, "x")), x2="end:Q"
        ),
        base.mark("tick", color=tone(0), thickness=2.4, height=16, clip=True).encode(
            x=channel("x:Q", title=title_lines(x_label, "x")), tooltip=tooltip(drawn)
        ),
    ]
    description = "; ".join(f"{name}: median {compact(five[2])}" for name, five in rows.items())
    return finish(tables, layers, title, description, width, step(26), zoom=("x",), legend=False)


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
    x = axis_of("x", x_label, x_range)
    y = axis_of("y", y_label, span([row["y"] for row in points], include=[0.0]), tickCount=7)
    colour = colour_of([(level, number) for number, level in enumerate(levels)], legend=True, symbol="circle")
    set_facts(points)
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
    metric_points = {kind: [row for row in points if row["metric"] == kind] for kind in kinds}
    tables = Tables()
    cross = tables.chart(metric_points["proxy"]).mark(
        "point", shape="M-1,-1L1,1M1,-1L-1,1", size=24, strokeOpacity=0.6, clip=True
    )
    filled = tables.chart(metric_points["gold"]).mark("point", filled=True, size=26, fillOpacity=0.45, clip=True)
    lines = tables.chart(fits)
    layers = [
        cross.encode(x=x, y=y, color=colour, opacity=picked(), tooltip=tooltip(points)),
        filled.encode(x=x, y=y, color=colour, opacity=picked(), tooltip=tooltip(points)),
        lines.mark("line", clip=True).encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=dashes,
            strokeWidth=conditional({"test": "datum.metric == 'gold'"}, 2.2, 1.3),
            opacity=picked(),
        ),
        tables.chart([{"y": 0}]).mark("rule", color=SOFT).encode(y=y),
    ]
    return finish(tables, layers, title, description, *size)


def unique(names: Sequence[str]) -> list[str]:
    """The names, a repeated one with its number: two rows of a chart with one name would fall on one another."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return distinct


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
            cleaned = {key: plain(value) for key, value in numbers.items()}
            apart = {} if point.joined else {"apart": True}
            rows.append({"series": one.name, **cleaned, **apart, "facts": facts})
    set_facts(rows)
    return rows


def _single_points(rows: Sequence[Row]) -> list[Row]:
    """Rows without a neighbour in their series that has a value: no line leads to them."""

    def has_value(place: int, series: str) -> bool:
        return 0 <= place < len(rows) and rows[place]["series"] == series and rows[place]["y"] is not None

    single = []
    for place, row in enumerate(rows):
        series = row["series"]
        alone = not has_value(place - 1, series) and not has_value(place + 1, series)
        if has_value(place, series) and alone:
            single.append(row)
    return single


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
    joined = [point for point in series.points if point.joined]
    apart = [point.y for point in series.points if not point.joined]
    parts = []
    if joined:
        parts.append(f"from {compact(joined[0].y)} to {compact(joined[-1].y)}")
    if apart:
        parts.append(f"{len(apart)} points that no line joins, {compact(min(apart))} to {compact(max(apart))}")
    return f"{series.name} {', '.join(parts)}"
