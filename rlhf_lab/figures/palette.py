"""Colours, markers and dashes of figures and pages.

The palettes are based on that of Okabe & Ito. They were adjusted so that all colours are distinguishable for
protanopes, deuteranopes and tritanopes and have a contrast of at least 3 with the paper
(tests/unit/studies/test_palette.py). Marker shape and dash carry the same information as colour. Figures are rendered
in the light colours. Style sheets replace each of them by its dark counterpart, so that one figure serves both themes,
and programs without style sheets show the light one.
"""

from __future__ import annotations

from collections.abc import Sequence

PALETTE_LIGHT = ("#3a60ab", "#944b05", "#499847", "#c977aa", "#653d1c", "#1998ea", "#5d5f64")
PALETTE_DARK = ("#408cbf", "#d7693c", "#3fcc88", "#e49fe7", "#f6dc40", "#9ae5fb", "#999d9c")
GREY = 6
"""Index of the colour of the baseline."""
DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3), (12, 5))
"""Dash patterns, px."""
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down")
"""Five markers and seven colours: 35 series are distinguishable, and the first five also without colour."""

_LIGHT = {"ink": "#1b1f27", "soft": "#626b7a", "grid": "#e6e9ee", "paper": "#ffffff"}
_DARK = {"ink": "#e8eaee", "soft": "#9aa3b2", "grid": "#2c323c", "paper": "#171a20"}
INK, SOFT, GRID, PAPER = _LIGHT.values()
FONT = "'Liberation Sans',Arial,Helvetica,'DejaVu Sans Condensed',sans-serif"
"""Fonts of nearly equal width, because text is measured where the figure is rendered but shown on another machine. The
usual DejaVu Sans is 15 % wider than Arial, so that long names at the left edge would be cut."""


def light_colour(number: int) -> str:
    return PALETTE_LIGHT[number % len(PALETTE_LIGHT)]


def dash_pattern(number: int) -> list[int]:
    return list(DASHES[number % len(DASHES)])


def shape(number: int) -> str:
    return SHAPES[number % len(SHAPES)]


def _variables(tones: Sequence[str], others: dict[str, str]) -> str:
    """Return colours as CSS declarations: series as --t0, --t1, …, the others by name."""
    names = {f"t{index}": colour for index, colour in enumerate(tones)} | others
    return ";".join(f"--{name}:{colour}" for name, colour in names.items())


LIGHT = _variables(PALETTE_LIGHT, _LIGHT)
DARK = _variables(PALETTE_DARK, _DARK)
"""Colours as CSS variables of a page, light and dark theme."""


def dark_rules(scope: str = "") -> str:
    """Return style rules that replace every light colour of a figure by its dark counterpart."""
    pairs = list(zip(PALETTE_LIGHT, PALETTE_DARK, strict=True))
    pairs += zip(_LIGHT.values(), _DARK.values(), strict=True)
    # Attribute selectors, because the SVG has its colours in `fill` and `stroke`.
    rules = []
    for light, dark in pairs:
        for attribute in ("fill", "stroke"):
            rules.append(f'{scope} [{attribute}="{light}"]{{{attribute}:{dark}}}'.strip())
    return "".join(rules)
