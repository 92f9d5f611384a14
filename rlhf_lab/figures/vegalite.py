"""Vega-Lite as plain values: the few parts that the figures are made of, without a library between them and the JSON.

A layer is built step by step, `layer("rows0").mark("line").encode(x=channel("x:Q"))`, and each step returns another
one, so that a common beginning can be shared. Nothing is checked here; tests/unit/studies/test_figures.py checks every
kind of chart against the schema. What stands beside one another is sorted by name: figures do not depend on the order
in which they were written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
FIRST_VIEW = "first"
"""Name of the first layer, which reads the wheel and the legend."""
TYPES = {"Q": "quantitative", "N": "nominal"}
SECONDARY = ("x2", "y2")
"""Channels that end where another one begins; they have its type."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """One mark over one table.

    Attributes:
        table: name of its rows among the data sets of the chart.
        kind, look: the mark and its properties.
        channels: what of a row the mark shows where.
        condition: expression that a row must meet; empty takes all.
    """

    table: str
    kind: str = ""
    look: Mapping[str, Any] = field(default_factory=dict)
    channels: Mapping[str, Any] = field(default_factory=dict)
    condition: str = ""

    def where(self, condition: str) -> Layer:
        return replace(self, condition=condition)

    def mark(self, kind: str, **look: Any) -> Layer:
        return replace(self, kind=kind, look=look)

    def encode(self, **channels: Any) -> Layer:
        """Further channels. A text stands for the channel of a field."""
        return replace(self, channels={**self.channels, **channels})

    def to_json(self) -> Json:
        encoding = {}
        for name, value in self.channels.items():
            encoding[name] = channel(value) if isinstance(value, str) else value
            if name in SECONDARY:
                encoding[name] = {"field": encoding[name]["field"]}
        specification = {
            "data": {"name": self.table},
            "mark": {"type": self.kind, **in_order(self.look)},
            "encoding": in_order(encoding),
        }
        if self.condition:
            specification["transform"] = [{"filter": self.condition}]
        return specification


def channel(shorthand: str, **properties: Any) -> Json:
    """A field with its type, "step:Q" for a quantity and "name:N" for names, and what else is said about it."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, "type": TYPES[kind], **properties}


def constant(value: Any) -> Json:
    """A channel that is the same for every row."""
    return {"value": value}


def conditional(condition: Json, then: Any, otherwise: Any) -> Json:
    """A channel with one value where a condition holds and another elsewhere.

    Args:
        condition: {"test": expression} or {"param": name}.
    """
    return {"condition": {**condition, "value": then}, "value": otherwise}


def step(pixels: int) -> Json:
    """A size of so many pixels for each name on its axis."""
    return {"step": pixels}


def expression(text: str) -> Json:
    """A property that Vega computes."""
    return {"expr": text}


def layered(layers: Sequence[Layer], params: Sequence[Json], width: int, height: int | Json) -> Json:
    """A specification of these layers; `params` are what a reader can do."""
    drawn = [layer.to_json() for layer in layers]
    drawn[0] = _named(drawn[0])
    shared = {}
    if len({layer.table for layer in layers}) == 1:  # what all layers read is said once
        shared = {"data": drawn[0]["data"]}
        drawn = [{key: part for key, part in layer.items() if key != "data"} for layer in drawn]
    return {
        "layer": drawn,
        "autosize": {"contains": "padding", "type": "fit-x"},
        **shared,
        "height": height,
        "params": [{**param, "views": [FIRST_VIEW]} for param in params],
        "width": width,
        "$schema": SCHEMA,
    }


def _named(layer: Json) -> Json:
    """The layer with the name by which parameters refer to it, before its filter."""
    filters = {"transform": layer.pop("transform")} if "transform" in layer else {}
    return {**layer, "name": FIRST_VIEW, **filters}


def in_order(node: Any) -> Any:
    """The same values, in objects whose keys are sorted."""
    if isinstance(node, Mapping):
        return {key: in_order(node[key]) for key in sorted(node)}
    if isinstance(node, list):
        return [in_order(item) for item in node]
    return node
