"""A small plotting surface that writes inline SVG: scales, round ticks, axes, legend, markers.

Colours are CSS variables, so a page or a standalone file follows light and dark mode. The palettes start from Okabe &
Ito's and are moved so that all colours stay apart for protanopes, deuteranopes and tritanopes and keep a contrast of 3
with the paper (tests/unit/studies/test_palette.py); marker shape and dash repeat what colour says. Left out: log axes,
date axes, interaction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

PALETTE_LIGHT = ("#3a60ab", "#944b05", "#499847", "#c977aa", "#653d1c", "#1998ea", "#5d5f64")
PALETTE_DARK = ("#408cbf", "#d7693c", "#3fcc88", "#e49fe7", "#f6dc40", "#9ae5fb", "#999d9c")
GREY = 6
"""Colour of what others are compared with."""
LETTER = 6.2
"""Width of a letter in figures, px."""
LEGEND_ROW = 15
LEGEND_LEFT = 64
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 5")
SHAPES = ("circle", "square", "diamond", "triangle", "wedge")
"""Five of each and seven colours: 35 series look different, also without colour."""

STYLE = (
    "svg.plot{font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;color:var(--ink)}"
    "svg.plot text{fill:currentColor}svg.plot .soft{fill:var(--soft)}svg.plot .grid{stroke:var(--grid)}"
    "svg.plot .axis{stroke:var(--soft)}svg.plot .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px}"
)


def variables(palette: Sequence[str], ink: str, soft: str, grid: str, paper: str) -> str:
    tones = "".join(f"--t{number}:{colour};" for number, colour in enumerate(palette))
    return f"{tones}--ink:{ink};--soft:{soft};--grid:{grid};--paper:{paper}"


LIGHT = variables(PALETTE_LIGHT, "#1b1f27", "#626b7a", "#e6e9ee", "#ffffff")
DARK = variables(PALETTE_DARK, "#e8eaee", "#9aa3b2", "#2c323c", "#171a20")
STANDALONE = (
    f"<style>:root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    + STYLE
    + "svg.plot{background:var(--paper)}</style>"
)


def tone(number: int) -> str:
    return f"var(--t{number % len(PALETTE_LIGHT)})"


def dash(number: int) -> str:
    """The dash pattern that goes with a colour."""
    return DASHES[number % len(DASHES)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) inside [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_text(value: float, step: float) -> str:
    """A tick label with as many decimals as its step needs, all of them for a single tick (step 0); thousands as k."""
    if value == 0:
        return "0"
    if step == 0:
        return f"{value:g}".replace("-", "−")
    if abs(value) >= 1e6 or step < 5e-4:
        digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - math.floor(math.log10(step) + 1e-9))
        return f"{value:.{digits}e}".replace("e-0", "e−").replace("e+0", "e").replace("e+", "e").replace("-", "−")
    if step >= 1000:
        return f"{value / 1000:g}k".replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:.{decimals}f}".replace("-", "−")


def span(values: Sequence[float], pad: float = 0.06, include: Sequence[float] = ()) -> tuple[float, float]:
    """The range of the finite values, padded by a fraction; never empty."""
    finite = [value for value in (*values, *include) if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:
        return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    return low - pad * (high - low), high + pad * (high - low)


@dataclass
class Canvas:
    """An SVG under construction with one linear x and one linear y scale.

    Attributes:
        x_range, y_range: data limits.
        left, right, top, bottom: margins, px.
    """

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    title: str
    description: str
    left: int = 48
    right: int = 12
    top: int = 12
    bottom: int = 38
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        low, high = self.x_range
        place = self.left + (value - low) / (high - low) * (self.width - self.left - self.right)
        return min(max(place, -1e4), 1e4)

    def y(self, value: float) -> float:
        low, high = self.y_range
        place = self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)
        return min(max(place, -1e4), 1e4)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = "", extra: str = "") -> None:
        attributes = f' text-anchor="{anchor}"' if anchor != "start" else ""
        attributes += f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{attributes}{extra}>{escape(words)}</text>')

    def x_axis(self, label: str, *, integers: bool = False) -> None:
        marks = ticks(*self.x_range, count=max(4, (self.width - self.left - self.right) // 75))
        if integers:
            marks = [mark for mark in marks if mark == int(mark)]
        step = marks[1] - marks[0] if len(marks) > 1 else 1.0
        base = self.height - self.bottom
        for mark in marks:
            here = self.x(mark)
            self.parts.append(f'<path class="axis" d="M{here:.1f} {base}v4"/>')
            self.text(here, base + 15, tick_text(mark, step), anchor="middle", kind="soft")
        self.parts.append(f'<path class="axis" d="M{self.left} {base}H{self.width - self.right}"/>')
        self.text((self.left + self.width - self.right) / 2, self.height - 6, label, anchor="middle")

    def y_axis(self, label: str) -> None:
        """Comes before anything else is drawn: it widens the left margin for long numbers."""
        marks = ticks(*self.y_range, count=max(4, (self.height - self.top - self.bottom) // 40))
        step = marks[1] - marks[0] if len(marks) > 1 else 1.0
        widest = max(len(tick_text(mark, step)) for mark in marks) if marks else 0
        self.left = max(self.left, round(10 + LETTER * widest) + (14 if label else 0))
        for mark in marks:
            here = self.y(mark)
            self.parts.append(f'<path class="grid" d="M{self.left} {here:.1f}H{self.width - self.right}"/>')
            self.text(self.left - 6, here + 3.5, tick_text(mark, step), anchor="end", kind="soft")
        if label:
            middle = (self.top + self.height - self.bottom) / 2
            turn = f' transform="rotate(-90 12 {middle:.0f})"'
            self.text(12, middle, label, anchor="middle", extra=turn)

    def line(self, points: Sequence[tuple[float, float]], colour: int, *, dash: str = "", width: float = 1.8) -> None:
        """A broken line in data units; NaN lifts the pen."""
        path, pen_up = [], True
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                pen_up = True
                continue
            path.append(f"{'M' if pen_up else 'L'}{self.x(x):.1f} {self.y(y):.1f}")
            pen_up = False
        if path:
            style = f' stroke-dasharray="{dash}"' if dash else ""
            self.parts.append(
                f'<path d="{"".join(path)}" fill="none" stroke="{tone(colour)}" stroke-width="{width}"{style}/>'
            )

    def band(self, points: Sequence[tuple[float, float, float]], colour: int) -> None:
        """The area between low and high, for (x, low, high) in data units."""
        kept = [point for point in points if all(map(math.isfinite, point))]
        if len(kept) > 1:
            there = [f"{self.x(x):.1f} {self.y(high):.1f}" for x, _, high in kept]
            back = [f"{self.x(x):.1f} {self.y(low):.1f}" for x, low, _ in reversed(kept)]
            self.parts.append(f'<path d="M{"L".join(there + back)}Z" fill="{tone(colour)}" fill-opacity=".16"/>')

    def whisker(self, x: tuple[float, float], y: tuple[float, float], colour: int) -> None:
        """An error bar between two points in data units, clipped to the plot."""
        (x0, x1), (y0, y1) = ([self._clip(v, self.x_range) for v in x], [self._clip(v, self.y_range) for v in y])
        start, end = f"M{self.x(x0):.1f} {self.y(y0):.1f}", f"L{self.x(x1):.1f} {self.y(y1):.1f}"
        self.parts.append(f'<path d="{start}{end}" stroke="{tone(colour)}" stroke-width="1.3" fill="none"/>')

    def marker(self, x: float, y: float, colour: int, *, shape: int | None = None, faint: bool = False) -> None:
        self.parts.append(glyph(self.x(x), self.y(y), colour, shape=shape, size=2.6 if faint else 4.2, faint=faint))

    def legend(self, names: Sequence[tuple[str, int]], *, marks: bool = True) -> None:
        """Names with their colours in rows above the plot; the caller leaves room in `top`, see `legend_extra`."""
        places = _legend_places([name for name, _ in names], self.left, self.width)
        for (name, colour), (here, row) in zip(names, places, strict=True):
            base = LEGEND_ROW * row
            if marks:
                self.parts.append(glyph(here + 5, base + 9, colour))
            else:
                style = f' stroke-dasharray="{dash(colour)}"' if dash(colour) else ""
                line = f'<path d="M{here:.0f} {base + 9}h14" stroke="{tone(colour)}" stroke-width="2"{style}/>'
                self.parts.append(line)
            self.text(here + 18, base + 13, short(name))

    def render(self, *, standalone: bool = False) -> str:
        space = ' xmlns="http://www.w3.org/2000/svg"' if standalone else ""
        names = f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
        return (
            f'<svg{space} class="plot" role="img" viewBox="0 0 {self.width} {self.height}" width="{self.width}">'
            f"{names}{STANDALONE if standalone else ''}{''.join(self.parts)}</svg>"
        )

    @staticmethod
    def _clip(value: float, limits: tuple[float, float]) -> float:
        return min(max(value, min(limits)), max(limits))


def legend_extra(names: Sequence[str], width: int) -> int:
    """Pixels that a legend needs beyond its first row, in a figure of this width."""
    return LEGEND_ROW * max((row for _, row in _legend_places(names, LEGEND_LEFT, width)), default=0)


def _legend_places(names: Sequence[str], left: int, width: int) -> list[tuple[float, int]]:
    """(x, row) of each name; a name that does not fit begins a row."""
    places, here, row = [], float(left), 0
    for name in names:
        wide = 34 + LETTER * len(short(name))
        if here > left and here + wide - 16 > width:
            here, row = float(left), row + 1
        places.append((here, row))
        here += wide
    return places


def short(name: str) -> str:
    """A name as figures write it."""
    return name if len(name) <= 26 else name[:25] + "…"


def glyph(x: float, y: float, colour: int, *, shape: int | None = None, size: float = 4.2, faint: bool = False) -> str:
    """One marker at a pixel; the shape follows the colour, so that neither is needed alone."""
    kind = SHAPES[(colour if shape is None else shape) % len(SHAPES)]
    paint = f'fill="{tone(colour)}"' + (' fill-opacity=".4"' if faint else "")
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" {paint}/>'
    outline = {
        "square": f"M{x - size:.1f} {y - size:.1f}h{2 * size:.1f}v{2 * size:.1f}h{-2 * size:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.35 * size:.1f}l{1.35 * size:.1f} {1.35 * size:.1f}"
        f"l{-1.35 * size:.1f} {1.35 * size:.1f}l{-1.35 * size:.1f} {-1.35 * size:.1f}z",
        "triangle": f"M{x:.1f} {y - 1.2 * size:.1f}l{1.2 * size:.1f} {2.1 * size:.1f}h{-2.4 * size:.1f}z",
        "wedge": f"M{x:.1f} {y + 1.2 * size:.1f}l{1.2 * size:.1f} {-2.1 * size:.1f}h{-2.4 * size:.1f}z",
    }[kind]
    return f'<path d="{outline}" {paint}/>'
