"""Rows of a chart's layers, as Vega reads them, and their tooltips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.figures.vegalite import Json, MarkLayer, channel

Row = dict[str, Any]
Tooltip = Mapping[str, str]
"""Content of a tooltip: title → text."""


class Tables:
    """Named tables with the rows of one chart; layers refer to them by name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}

    def chart(self, rows: Sequence[Row]) -> MarkLayer:
        """Add a table of rows, and return a layer over it that has no mark yet."""
        name = f"rows{len(self.rows)}"
        self.rows[name] = [_to_plain(row) for row in rows]
        return MarkLayer(name)


def _to_plain(row: Row) -> Row:
    """Return a row without non-finite numbers. A non-finite y becomes null instead, because it interrupts a line."""
    values = {key: to_number_or_text(value) for key, value in row.items() if key != "facts"}
    return {key: value for key, value in values.items() if value is not None or key == "y"}


def to_number_or_text(value: Any) -> Any:
    """Return text unchanged, a number with six digits, and None for a non-finite number."""
    if isinstance(value, (str, type(None))):
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def set_summary(rows: Sequence[Row]) -> None:
    """Add the tooltip of every row as fields t0, t1, …, in one order for all rows; "–" if a row lacks an entry."""
    titles = _titles(rows)
    for row in rows:
        row |= {f"t{index}": row["facts"].get(title, "–") for index, title in enumerate(titles)}


def _titles(rows: Sequence[Row]) -> list[str]:
    """Return the titles of all tooltip entries, without duplicates."""
    return list(dict.fromkeys(title for row in rows for title in row["facts"]))


def tooltip(rows: Sequence[Row]) -> list[Json]:
    """Return the tooltip fields of rows that `set_summary` has prepared."""
    # Vega-Lite puts titles into an expression, as quoted text, which must not contain a line separator.
    titles = [" ".join(title.split()) for title in _titles(rows)]
    return [channel(f"t{index}:N", title=title) for index, title in enumerate(titles)]
