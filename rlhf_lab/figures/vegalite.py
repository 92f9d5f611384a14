"""Vega-Lite specifications as plain values: the few parts that the figures need, without a library in between.

A layer is built step by step, `layer("rows0").mark("line").encode(x=channel("x:Q"))`. Each step returns a new layer, so
that several layers can have their first steps in common. Nothing is validated here;
tests/unit/studies/test_figures.py checks every kind of chart against the schema. Keys are sorted, so that figures do
not depend on the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
FIRST_VIEW = "first"
"""Name of the first layer, which handles the mouse wheel and the legend."""
TYPES = {"Q": "quantitative", "N": "nominal"}
"""Letter in a shorthand → type of the field."""
SECONDARY = ("x2", "y2")
"""Channels for the second end of a mark; they have the type of the first end."""

Json = dict[str, Any]


@dataclass(frozen=True)
class MarkLayer:
    """One mark over one table.

    Attributes:
        table: name of the table among the datasets of the chart.
        kind, style: the mark and its properties.
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
        encoding = {}
        for name, value in self.channels.items():
            encoding[name] = channel(value) if isinstance(value, str) else value
            if name in SECONDARY:
                # A secondary channel takes only a field; its type is that of the primary channel.
                encoding[name] = {"field": encoding[name]["field"]}
        specification = {
            "data": {"name": self.table},
            "mark": {"type": self.kind, **in_order(self.style)},
            "encoding": in_order(encoding),
        }
        if self.condition:
            specification["transform"] = [{"filter": self.condition}]
        return specification


def channel(shorthand: str, **properties: Any) -> Json:
    """Return the channel of a field: "step:Q" for a quantity, "name:N" for names, plus further properties."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, "type": TYPES[kind], **properties}


def constant(value: Any) -> Json:
    """Return a channel with the same value for every row."""
    return {"value": value}


def conditional(condition: Json, then: Any, otherwise: Any) -> Json:
    """Return a channel with one value if a condition holds and another value otherwise.

    Args:
        condition: {"test": expression} or {"param": name}.
        then, otherwise: the two values.
    """
    return {"condition": {**condition, "value": then}, "value": otherwise}


def step(pixels: int) -> Json:
    """Return a size of so many pixels for each name on its axis."""
    return {"step": pixels}


def expression(text: str) -> Json:
    """Return a property that Vega computes from an expression."""
    return {"expr": text}


def layered(layers: Sequence[MarkLayer], params: Sequence[Json], width: int, height: int | Json) -> Json:
    """Return the specification of a layered chart; `params` are its interactive parameters."""
    rendered = [layer.to_json() for layer in layers]
    rendered[0] = _named(rendered[0])
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


def _named(layer: Json) -> Json:
    """Return the layer with the name by which parameters refer to it; the name comes before its filter."""
    # The filter is removed and appended again, so that it stays the last key.
    filters = {"transform": layer.pop("transform")} if "transform" in layer else {}
    return {**layer, "name": FIRST_VIEW, **filters}


def in_order(node: Any) -> Any:
    """Return the same values, in objects whose keys are sorted."""
    if isinstance(node, Mapping):
        return {key: in_order(node[key]) for key in sorted(node)}
    if isinstance(node, list):
        return [in_order(item) for item in node]
    return node
