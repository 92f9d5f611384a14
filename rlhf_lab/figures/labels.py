"""Where the labels of points go: Vega-Lite puts all of them on one side, where they cover one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NARROW = 230
"""Width of the plot on a telephone, px. Labels that are clear there are clear on every wider one."""
LETTER = 6.0
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Label:
    """A point in data units and what is written beside it; empty text only keeps others away."""

    x: float
    y: float
    text: str


def place_labels(
    labels: Sequence[Label], x_range: tuple[float, float], y_range: tuple[float, float], *, height: float
) -> list[tuple[Label, int, int]]:
    """Each label with text, and its offset from its point to the middle of its near edge, px; dx < 0 is to the left.

    Args:
        x_range, y_range: limits of the axes.
        height: of the plot, px.
    """

    def pixel(label: Label) -> tuple[float, float]:
        x = (label.x - x_range[0]) / (x_range[1] - x_range[0]) * NARROW
        y = (y_range[1] - label.y) / (y_range[1] - y_range[0]) * height
        return x, y

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
        best: tuple[int, int, int] | None = None
        best_box: Box = (0, 0, 0, 0)
        for dy in (-11, 12, -25, 26):
            for dx in (8, -8):
                left = x + dx if dx > 0 else x + dx - width
                box = (left, y + dy - 7, left + width, y + dy + 7)
                covered = _covered(box, taken, height)
                if best is None or covered < best[0]:
                    best, best_box = (covered, dx, dy), box
        assert best is not None
        taken.append(best_box)
        placed.append((label, best[1], best[2]))
    return placed


def _covered(box: Box, taken: Sequence[Box], height: float) -> int:
    """How many boxes a box overlaps, counting a place outside the plot as several."""
    outside = box[0] < 0 or box[2] > NARROW or box[1] < 0 or box[3] > height
    overlaps = [box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken]
    return 4 * outside + sum(overlaps)
