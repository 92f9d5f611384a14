"""Colours, markers and dashes of figures and pages.

The palettes start from Okabe & Ito's and are moved so that all colours stay apart for protanopes, deuteranopes and
tritanopes and keep a contrast of 3 with the paper (tests/unit/studies/test_palette.py); marker shape and dash repeat
what colour says. Figures are drawn in the light colours. Style sheets turn each of them into its dark counterpart, so
that one figure serves both themes, and programs without style sheets show the light one.
"""

from __future__ import annotations

from collections.abc import Sequence

PALETTE_LIGHT = ("#3a60ab", "#944b05", "#499847", "#c977aa", "#653d1c", "#1998ea", "#5d5f64")
PALETTE_DARK = ("#408cbf", "#d7693c", "#3fcc88", "#e49fe7", "#f6dc40", "#9ae5fb", "#999d9c")
GREY = 6
"""Colour of what others are compared with."""
DASHES = ((1, 0), (6, 3), (2, 3), (8, 3, 2, 3), (12, 5))
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down")
"""Five of each and seven colours: 35 series look different, also without colour."""

_LIGHT = {"ink": "#1b1f27", "soft": "#626b7a", "grid": "#e6e9ee", "paper": "#ffffff"}
_DARK = {"ink": "#e8eaee", "soft": "#9aa3b2", "grid": "#2c323c", "paper": "#171a20"}
INK, SOFT, GRID, PAPER = _LIGHT.values()
FONT = "'Liberation Sans',Arial,Helvetica,sans-serif"
"""Fonts of one width: text is measured where the figure is drawn, and shown where it is read."""


def tone(number: int) -> str:
    """The light colour of a series."""
    return PALETTE_LIGHT[number % len(PALETTE_LIGHT)]


def dash(number: int) -> list[int]:
    """The dash pattern that goes with a colour, px."""
    return list(DASHES[number % len(DASHES)])


def shape(number: int) -> str:
    """The marker that goes with a colour, as Vega calls it."""
    return SHAPES[number % len(SHAPES)]


def _variables(tones: Sequence[str], others: dict[str, str]) -> str:
    names = {f"t{number}": colour for number, colour in enumerate(tones)} | others
    return ";".join(f"--{name}:{colour}" for name, colour in names.items())


LIGHT = _variables(PALETTE_LIGHT, _LIGHT)
DARK = _variables(PALETTE_DARK, _DARK)
"""The colours as CSS variables of a page."""


def dark_rules(scope: str = "") -> str:
    """Style rules that replace every light colour of a figure by its dark counterpart.

    Args:
        scope: selector of the figures they apply to, such as ".chart svg".
    """
    pairs = [*zip(PALETTE_LIGHT, PALETTE_DARK, strict=True), *zip(_LIGHT.values(), _DARK.values(), strict=True)]
    rules = []
    for light, dark in pairs:
        rules += [f'{scope} [{channel}="{light}"]{{{channel}:{dark}}}'.strip() for channel in ("fill", "stroke")]
    return "".join(rules)
