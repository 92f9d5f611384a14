"""Vega-Lite specifications as plain values: the few parts that the figures need, without a library in between.

A layer is built step by step, `layer("rows0").mark("line").encode(x=channel("x:Q"))`. Each step returns a new layer, so
that several layers can have their first steps in common. `Tables` has the rows of the layers. Nothing is validated
here; tests/unit/studies/test_figures.py checks every kind of chart against the schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
FIRST_VIEW = "first"
"""Name of the first layer, which handles the mouse wheel and the legend."""
TYPES = {"Q": "quantitative", "N": "nominal"}
"""Letter in a shorthand → type of the field."""
SECONDARY = {"x2", "y2"}
"""Channels for the second end of a mark."""

Json = dict[str, Any]
Row = dict[str, Any]
Tooltip = Mapping[str, str]
"""Content of a tooltip: title → text."""


@dataclass(frozen=True)
class MarkLayer:
    """One mark over one table.

    Attributes:
        table: name of the table among the datasets of the chart.
        channels: visual channel, such as x or color → field or value that it shows.
        condition: expression that rows must satisfy; empty includes all.
    """

    table: str
    kind: str = ""
    style: Mapping[str, Any] = field(default_factory=dict)
    channels: Mapping[str, Any] = field(default_factory=dict)
    condition: str = ""

    def where(self, condition: str) -> MarkLayer:
        """Return the layer restricted to rows that satisfy an expression."""
        return replace(self, condition=condition)

    def mark(self, kind: str, **style: Any) -> MarkLayer:
        return replace(self, kind=kind, style=style)

    def encode(self, **channels: Any) -> MarkLayer:
        """Return the layer with further channels. A string is a shorthand for the channel of a field."""
        return replace(self, channels={**self.channels, **channels})

    def to_json(self) -> Json:
        """Return the Vega-Lite specification of the layer."""
        encoding = {name: channel(to) if isinstance(to, str) else to for name, to in self.channels.items()}
        for name in SECONDARY & encoding.keys():  # they take only a field; its type is that of the first end
            encoding[name] = {"field": encoding[name]["field"]}
        mark = {"type": self.kind, **self.style}
        filters = {"transform": [{"filter": self.condition}]} if self.condition else {}
        return {"data": {"name": self.table}, "mark": mark, "encoding": encoding, **filters}


def channel(shorthand: str, **properties: Any) -> Json:
    """Return the channel of a field: "step:Q" for a quantity, "name:N" for names, plus further properties."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, "type": TYPES[kind], **properties}


def layered(layers: Sequence[MarkLayer], params: Sequence[Json], width: int, height: int | Json) -> Json:
    """Return the specification of a layered chart; `params` are its interactive parameters."""
    rendered = [layer.to_json() for layer in layers]
    rendered[0]["name"] = FIRST_VIEW
    shared = {}
    if len({layer.table for layer in layers}) == 1:  # state a common table once for all layers
        shared = {"data": rendered[0]["data"]}
        rendered = [{key: part for key, part in layer.items() if key != "data"} for layer in rendered]
    return {
        "layer": rendered,
        "autosize": {"contains": "padding", "type": "fit-x"},
        **shared,
        "height": height,
        "params": [{**param, "views": [FIRST_VIEW]} for param in params],
        "width": width,
        "$schema": SCHEMA,
    }


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
