"""The four figures of the reports, as inline SVG: curves, frontier, dots with whiskers, and spread of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_lab.figures.svg import GREY, Canvas, dash, legend_extra, short, span, tone
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.inference import Estimate


@dataclass(frozen=True)
class Point:
    """A point with optional error bars and label; infinite bounds are not drawn."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    x_low: float = math.nan
    x_high: float = math.nan
    label: str = ""


@dataclass(frozen=True)
class Series:
    """A named sequence of points. `colour` is an index into the palette; shape and dash follow it."""

    name: str
    points: Sequence[Point]
    colour: int = 0


@dataclass(frozen=True)
class Level:
    """One line of a dot plot: an estimate, and the single runs behind it. `colour` also chooses the marker."""

    name: str
    estimate: Estimate
    runs: Sequence[float] = field(default_factory=tuple)
    reference: bool = False
    colour: int = 0


def curves(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    y_label: str = "",
    size: tuple[int, int] = (330, 190),
) -> str:
    """Lines over x with a band between each point's low and high."""
    points = [point for one in series for point in one.points]
    shown = [p.y for p in points] + [bound for p in points for bound in (p.low, p.high)]
    extra = legend_extra([one.name for one in series], size[0]) if len(series) > 1 else 0
    canvas = Canvas(
        size[0],
        size[1] + extra,
        span([p.x for p in points], pad=0.0),
        span(shown),
        title,
        f"{title} over {x_label}: " + "; ".join(map(_ends, series)),
        top=24 + extra if len(series) > 1 else 10,
        left=50,
        bottom=34,
    )
    canvas.y_axis(y_label)
    canvas.x_axis(x_label, integers=x_label == "step")
    for one in series:
        canvas.band([(p.x, p.low, p.high) for p in one.points], one.colour)
    for one in series:
        canvas.line([(p.x, p.y) for p in one.points], one.colour, dash=dash(one.colour))
        if len(one.points) == 1:
            canvas.marker(one.points[0].x, one.points[0].y, one.colour)
    if len(series) > 1:
        canvas.legend([(one.name, one.colour) for one in series], marks=False)
    return canvas.render()


def frontier(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    origin: bool = False,
    integers: bool = False,
    size: tuple[int, int] = (520, 330),
    standalone: bool = False,
) -> str:
    """Points with error bars in both directions, joined in order.

    Args:
        origin: keep (0, 0) in view, with its axes.
        integers: only whole numbers are marked on the x axis.
    """
    points = [point for one in series for point in one.points]
    zero = [0.0] if origin else []
    extra = legend_extra([one.name for one in series], size[0])
    canvas = Canvas(
        size[0],
        size[1] + extra,
        span([v for p in points for v in (p.x, p.x_low, p.x_high)], include=zero),
        span([v for p in points for v in (p.y, p.low, p.high)], pad=0.08, include=zero),
        title,
        "; ".join(map(_ends, series)),
        top=28 + extra,
        left=56,
        right=24,
    )
    canvas.y_axis(y_label)
    canvas.x_axis(x_label, integers=integers)
    if origin:
        canvas.parts.append(f'<path class="axis" d="M{canvas.left} {canvas.y(0):.1f}H{canvas.width - canvas.right}"/>')
    for one in series:
        canvas.line([(p.x, p.y) for p in one.points], one.colour, dash=dash(one.colour), width=1.4)
        for p in one.points:
            if math.isfinite(p.low) and math.isfinite(p.high):
                canvas.whisker((p.x, p.x), (p.low, p.high), one.colour)
            if math.isfinite(p.x_low) and math.isfinite(p.x_high):
                canvas.whisker((p.x_low, p.x_high), (p.y, p.y), one.colour)
            canvas.marker(p.x, p.y, one.colour)
    _labels(canvas, points)
    canvas.legend([(one.name, one.colour) for one in series])
    return canvas.render(standalone=standalone)


def dots(
    levels: Sequence[Level], *, title: str, x_label: str, width: int = 430, standalone: bool = False, top: int = 10
) -> str:
    """One line per level: mean as a dot, interval as a whisker, single runs as faint dots; baseline dotted through."""
    values = [v for row in levels for v in (row.estimate.mean, *row.runs)]
    bounds = [v for row in levels if row.estimate.bounded for v in (row.estimate.low, row.estimate.high)]
    limits = span(_near(values, bounds))
    step, left = 30, 24 + round(6.3 * max((len(short(row.name)) for row in levels), default=4))
    canvas = Canvas(
        width,
        top + 40 + step * len(levels),
        limits,
        (len(levels) - 0.5, -0.5),
        title,
        "; ".join(f"{row.name}: {compact(row.estimate)}" for row in levels),
        left=left,
        right=16,
        top=top,
        bottom=40,
    )
    canvas.x_axis(x_label)
    for place, row in enumerate(levels):
        canvas.parts.append(f'<path class="grid" d="M{left} {canvas.y(place):.1f}H{width - 16}"/>')
        canvas.text(left - 8, canvas.y(place) + 4, short(row.name), anchor="end")
        if row.reference and math.isfinite(row.estimate.mean):
            here = canvas.x(row.estimate.mean)
            canvas.parts.append(
                f'<path class="axis" stroke-dasharray="3 3" d="M{here:.1f} {top}V{canvas.height - 40}"/>'
            )
    for place, row in enumerate(levels):
        colour = GREY if row.reference else row.colour
        for run in row.runs:
            if math.isfinite(run):
                canvas.parts.append(_pip(canvas.x(run), canvas.y(place) + 8, colour))
        if math.isfinite(row.estimate.mean):
            if row.estimate.bounded:
                canvas.whisker((row.estimate.low, row.estimate.high), (place, place), colour)
            canvas.marker(row.estimate.mean, place, colour, shape=row.colour)
        else:
            canvas.text(left + 6, canvas.y(place) + 4, "no result", kind="soft")
    return canvas.render(standalone=standalone)


def spread(rows: Mapping[str, Sequence[float]], *, title: str, x_label: str, width: int = 520) -> str:
    """Quantiles of samples per row: 5-95 % as a line, 25-75 % as a bar, the median as a tick. `rows` holds the five."""
    left, step = 24 + round(6.3 * max((len(short(name)) for name in rows), default=4)), 26
    canvas = Canvas(
        width,
        48 + step * len(rows),
        span([v for five in rows.values() for v in five]),
        (len(rows) - 0.5, -0.5),
        title,
        "; ".join(f"{name}: median {compact(five[2])}" for name, five in rows.items()),
        left=left,
        right=16,
        top=8,
        bottom=40,
    )
    canvas.x_axis(x_label)
    for place, (name, five) in enumerate(rows.items()):
        here = canvas.y(place)
        low, start, middle, end, high = (canvas.x(v) for v in five)
        canvas.text(left - 8, here + 4, short(name), anchor="end")
        canvas.parts.append(
            f'<path d="M{low:.1f} {here:.1f}H{high:.1f}" stroke="{tone(0)}" stroke-width="1.3"/>'
            f'<rect x="{start:.1f}" y="{here - 6:.1f}" width="{max(end - start, 1):.1f}" height="12" rx="2" '
            f'fill="{tone(0)}" fill-opacity=".35"/>'
            f'<path d="M{middle:.1f} {here - 8:.1f}v16" stroke="{tone(0)}" stroke-width="2.4"/>'
        )
    return canvas.render()


def _labels(canvas: Canvas, points: Sequence[Point]) -> None:
    """Write each label on the first side of its point that is clear of other labels, points and the frame."""
    boxes = [(canvas.x(p.x) - 5, canvas.y(p.y) - 5, canvas.x(p.x) + 5, canvas.y(p.y) + 5) for p in points]
    for point in points:
        if not point.label:
            continue
        x, y, wide = canvas.x(point.x), canvas.y(point.y), 6.0 * len(point.label)
        sides = [(x + 8, y - 8), (x + 8, y + 16), (x - 8 - wide, y - 8), (x - 8 - wide, y + 16)]
        sides += [(x + 8, y - 22), (x - 8 - wide, y + 30)]
        spots = [(left, base - 10, left + wide, base + 2) for left, base in sides]
        box = min(spots, key=lambda spot: _covered(spot, boxes, canvas))
        boxes.append(box)
        canvas.text(box[0], box[3] - 2, point.label, kind="halo")


Box = tuple[float, float, float, float]


def _covered(spot: Box, boxes: Sequence[Box], canvas: Canvas) -> int:
    """How many boxes a spot overlaps, counting a place outside the plot as several."""
    outside = spot[0] < canvas.left or spot[2] > canvas.width or spot[1] < 14 or spot[3] > canvas.height - canvas.bottom
    return 4 * outside + sum(
        spot[0] < box[2] and box[0] < spot[2] and spot[1] < box[3] and box[1] < spot[3] for box in boxes
    )


def _near(values: Sequence[float], bounds: Sequence[float]) -> list[float]:
    """Values plus bounds, where bounds reach at most twice the spread beyond them: two seeds give huge intervals."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return list(bounds)
    low, high = min(finite), max(finite)
    room = 2 * (high - low) or math.inf
    return finite + [min(max(bound, low - room), high + room) for bound in bounds]


def _pip(x: float, y: float, colour: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{tone(colour)}" fill-opacity=".55"/>'


def _ends(series: Series) -> str:
    if not series.points:
        return f"{series.name}: no points"
    return f"{series.name} from {compact(series.points[0].y)} to {compact(series.points[-1].y)}"
