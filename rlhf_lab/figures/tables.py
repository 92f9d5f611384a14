"""The rows that a chart's layers draw, as Vega reads them, and the tooltips of the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.figures.vegalite import Json, Layer, channel

Row = dict[str, Any]
Facts = Mapping[str, str]
"""What a tooltip says: title → text."""


class Tables:
    """The rows of one chart's layers, which its layers name."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}

    def chart(self, rows: Sequence[Row]) -> Layer:
        """A chart of these rows, to which a layer adds its mark."""
        name = f"rows{len(self.rows)}"
        self.rows[name] = [_plain(row) for row in rows]
        return Layer(name)


def _plain(row: Row) -> Row:
    """A row without numbers that are not finite; y stays, as null, because it breaks a line."""
    values = {key: plain(value) for key, value in row.items() if key != "facts"}
    return {key: value for key, value in values.items() if value is not None or key == "y"}


def plain(value: Any) -> Any:
    """Text as it is; a number to six digits, None when it is not finite."""
    if isinstance(value, (str, type(None))):
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def set_facts(rows: Sequence[Row]) -> None:
    """Give every row its facts as fields t0, t1, …, in one order for all rows; "–" where a row has none."""
    titles = _titles(rows)
    for row in rows:
        row |= {f"t{number}": row["facts"].get(title, "–") for number, title in enumerate(titles)}


def _titles(rows: Sequence[Row]) -> list[str]:
    """The titles of all facts, each once."""
    return list(dict.fromkeys(title for row in rows for title in row["facts"]))


def tooltip(rows: Sequence[Row]) -> list[Json]:
    """The fields of a tooltip, see `set_facts`."""
    # Vega-Lite writes titles into an expression, as quoted text, which must not hold a line separator.
    titles = [" ".join(title.split()) for title in _titles(rows)]
    return [channel(f"t{number}:N", title=title) for number, title in enumerate(titles)]
