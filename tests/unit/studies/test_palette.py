"""Colours of figures and pages, by arithmetic: apart under colour blindness, readable in light and in dark."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from rlhf_lab.figures.palette import (
    DARK,
    DASHES,
    LIGHT,
    PALETTE_DARK,
    PALETTE_LIGHT,
    SHAPES,
    dark_rules,
    dash_pattern,
    shape,
)
from rlhf_lab.reports.page import TEMPLATES

# Machado, Oliveira & Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# severity 1.0, on linear sRGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Ottosson 2020, "A perceptual color space for image processing" (Oklab): linear sRGB → cone responses → L, a, b.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""Oklab distance × 100 of two colours side by side."""
APART, APART_FIRST = 7.5, 11.0
"""Required of all colours, and of the first four, which most figures use."""


def linear(colour: str) -> np.ndarray:
    """Linear sRGB of "#rrggbb" or "#rgb"."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    values = np.array([int(digits[position : position + 2], 16) / 255 for position in (0, 2, 4)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(colour: str, vision: str) -> np.ndarray:
    seen = np.clip(VISION[vision] @ linear(colour), 0, 1)
    return TO_LAB @ np.cbrt(TO_CONES @ seen)


def distance(a: str, b: str, vision: str) -> float:
    return 100 * float(np.linalg.norm(oklab(a, vision) - oklab(b, vision)))


def contrast(a: str, b: str) -> float:
    """WCAG 2.2 contrast ratio, 1 to 21."""
    luminance = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (a, b))
    return (luminance[1] + 0.05) / (luminance[0] + 0.05)


def variables(text: str) -> dict[str, str]:
    """CSS variables of a rule."""
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", text))


def themes() -> dict[str, dict[str, str]]:
    """All colours of a page, in light and in dark."""
    page = (TEMPLATES / "report.html.j2").read_text(encoding="utf-8")
    light, dark = re.findall(r":root\{ \{\{-.*?-\}\} ;(.*?)\}", page)
    return {"light": variables(LIGHT) | variables(light), "dark": variables(DARK) | variables(dark)}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [PALETTE_LIGHT, PALETTE_DARK], ids=["light", "dark"])
def test_series_stay_apart_for_every_eye(palette, vision):
    for (i, a), (j, b) in itertools.combinations(enumerate(palette), 2):
        smallest = APART_FIRST if j < 4 else APART
        assert distance(a, b, vision) >= smallest, f"colours {i} and {j} are {distance(a, b, vision):.1f} apart"


def test_colour_is_never_the_only_channel():
    assert len(PALETTE_LIGHT) == len(PALETTE_DARK) == 7
    looks = {(number % 7, tuple(dash_pattern(number)), shape(number)) for number in range(35)}
    assert len(looks) == 35  # 7 colours × 5 shapes repeat after 35 series
    for a, b in itertools.combinations(range(5), 2):  # without any colour, five series still differ
        assert dash_pattern(a) != dash_pattern(b) and shape(a) != shape(b)
    assert len(set(DASHES)) == len(DASHES) == len(SHAPES)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_and_marks_are_seen_on_the_paper(theme):
    colours = themes()[theme]
    for ink, ground in itertools.product(("ink", "soft", "good", "watch", "bad", "accent"), ("paper", "page")):
        found = contrast(colours[ink], colours[ground])
        assert found >= 4.5, f"{ink} on {ground}: {found:.2f}"

    for number in range(len(PALETTE_LIGHT)):
        assert contrast(colours[f"t{number}"], colours["paper"]) >= 3.0, number  # WCAG 1.4.11


def test_every_light_colour_of_a_figure_has_one_dark_counterpart():
    light, dark = variables(LIGHT), variables(DARK)
    assert len(set(light.values())) == len(light), "two roles share a colour: the rules cannot tell them apart"
    rules = dark_rules(".chart svg")
    for name, colour in light.items():
        for channel in ("fill", "stroke"):
            assert f'.chart svg [{channel}="{colour}"]{{{channel}:{dark[name]}}}' in rules
