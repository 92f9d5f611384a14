"""Placement of the labels of points. Vega-Lite would put all of them on the same side, where they overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NARROW = 230
"""Width of the plot on a telephone, px. Labels that do not overlap there do not overlap on any wider plot."""
LETTER = 6.0
"""Approximate width of a letter, px."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge, px."""


@dataclass(frozen=True)
class TextLabel:
    """Point in data units with the text next to it; a point with empty text only keeps other labels away."""

    x: float
    y: float
    text: str


def place_labels(
    labels: Sequence[TextLabel], x_range: tuple[float, float], y_range: tuple[float, float], *, height: float
) -> list[tuple[TextLabel, int, int]]:
    """Choose a position for each label with text.

    The offset leads from the point to the middle of the label's near edge, in px; dx < 0 puts the label on the left.

    Args:
        labels: all points, with or without text.

    Returns:
        (label, dx, dy) of each label with text.
    """

    def pixel(label: TextLabel) -> tuple[float, float]:
        width = x_range[1] - x_range[0]
        x = (label.x - x_range[0]) / width * NARROW
        y = (y_range[1] - label.y) / (y_range[1] - y_range[0]) * height
        return x, y

    # Points themselves must stay visible, so each takes a small box before any label is placed.
    taken: list[Box] = []
    for label in labels:
        x, y = pixel(label)
        taken.append((x - 5, y - 5, x + 5, y + 5))
    placed = []
    for label in labels:
        if not label.text:
            continue
        x, y = pixel(label)
        width = LETTER * len(label.text)
        boxes: dict[tuple[int, int], Box] = {}
        for dy in (-11, 12, -25, 26):
            for dx in (8, -8):
                left = x + dx if dx > 0 else x + dx - width
                boxes[dx, dy] = (left, y + dy - 7, left + width, y + dy + 7)
        # The eight positions are in order of preference: take the first one with the fewest overlaps.
        best = min(boxes, key=lambda offset: _covered(boxes[offset], taken, height))
        taken.append(boxes[best])
        placed.append((label, *best))
    return placed


def _covered(box: Box, taken: Sequence[Box], height: float) -> int:
    """Return how many boxes a box overlaps; leaving the plot counts as four overlaps."""
    outside_x = box[0] < 0 or box[2] > NARROW
    outside_y = box[1] < 0 or box[3] > height
    overlaps = sum(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )
    return 4 * (outside_x or outside_y) + overlaps
