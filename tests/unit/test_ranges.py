"""Ranges in annotations: which values they refuse, and the sentence about each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from rlhf_lab.config import schema
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import (
    CheckedSettings,
    Distinct,
    Finite,
    Ge,
    Gt,
    Le,
    Lt,
    NotEmpty,
    range_problems,
    range_texts,
)

NAN, INFINITY = float("nan"), float("inf")


@dataclass(frozen=True)
class Trained(CheckedSettings):
    batch_size: Annotated[int, Ge(1)] = 16
    warmup: Annotated[float, Ge(0), Lt(1)] = 0.05
    norm: Annotated[float, Gt(0, hint="use 1e9 for no clipping")] = 1.0
    keep: Annotated[float, Gt(0), Le(1, hint="1 keeps all")] = 1.0
    rate: Annotated[float, Gt(0)] | None = None
    offset: Annotated[float, Finite(hint="0 adds nothing")] = 0.0
    either: Annotated[int, Ge(1)] | str = 4
    path: Annotated[str, NotEmpty(hint="write path=FILE")] = "rows.jsonl"
    sizes: Annotated[tuple[Annotated[int, Ge(1)], ...], NotEmpty(), Distinct()] = (1, 2)
    names: str | Annotated[tuple[str, ...], NotEmpty(hint="name one"), Distinct()] = "all"
    weights: dict[str, Annotated[float, Ge(0)]] | None = None
    mixes: tuple[dict[str, Annotated[float, Finite()]], ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    free: float = INFINITY

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.mode == "fast" or self.batch_size >= 4, f"batch_size={self.batch_size} is too small for mode=slow"),
        )


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1},
        {"warmup": 0},
        {"keep": 1},
        {"rate": None},
        {"either": "auto"},
        {"sizes": (2, 1)},
        {"sizes": [3]},
        {"names": ""},  # the range is of the list
        {"weights": {"a": 0.0}},
        {"mixes": ({"a": -1.0}, {})},
        {"free": NAN},
    ],
)
def test_values_in_their_range(values) -> None:
    assert range_problems(Trained(**values)) == []


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"batch_size": None}, "batch_size=None must be a finite number at least 1"),
        ({"batch_size": "8"}, "batch_size=8 must be a finite number at least 1"),
        ({"warmup": -0.1}, "warmup=-0.1 must be at least 0 and below 1"),
        ({"warmup": 1.0}, "warmup=1.0 must be at least 0 and below 1"),
        ({"warmup": NAN}, "warmup=nan must be a finite number at least 0 and below 1"),
        ({"keep": 1.5}, "keep=1.5 must be above 0 and at most 1; 1 keeps all"),
        ({"rate": 0.0}, "rate=0.0 must be above 0"),
        ({"offset": -INFINITY}, "offset=-inf must be a finite number; 0 adds nothing"),
        ({"path": ""}, "path is not set; write path=FILE"),
        ({"sizes": (3, 3)}, "sizes=[3, 3] must be without repeats"),
        ({"sizes": (2, 0)}, "sizes[1]=0 must be at least 1"),
        ({"names": ("a", "a")}, "names=['a', 'a'] must be without repeats; name one"),
        ({"weights": {"a": 1.0, "b": -1.0}}, "weights.b=-1.0 must be at least 0"),
        ({"mixes": ({}, {"a": NAN})}, "mixes[1].a=nan must be a finite number"),
    ],
)
def test_values_outside_their_range(values, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        Trained(**values)
    assert error.value.problems == [problem]


def test_broken_ranges_and_rules_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        Trained(batch_size=0, warmup=2.0, mode="slow")
    assert error.value.problems == [
        "batch_size=0 must be at least 1",
        "warmup=2.0 must be at least 0 and below 1",
        "batch_size=0 is too small for mode=slow",
    ]


def test_values_from_yaml_are_converted_and_then_checked() -> None:
    problems: list[str] = []
    built = schema.build(Trained, {"norm": "1e-3", "sizes": [4], "weights": {"a": 1}, "rate": None}, "t", problems)
    assert (built, problems) == (Trained(norm=1e-3, sizes=(4,), weights={"a": 1.0}), [])
    values = {"batch_size": "many", "warmup": 1, "either": 0.5, "sizes": [0], "weights": {"a": -1}}
    assert schema.build(Trained, values, "t", problems) is None
    assert problems == [
        "t.batch_size=many is text, expected a whole number",
        "t.either=0.5 is a number, expected a whole number",
        "t.warmup=1.0 must be at least 0 and below 1",
        "t.sizes[0]=0 must be at least 1",
        "t.weights.a=-1.0 must be at least 0",
    ]


def test_a_subclass_with_another_default_keeps_the_range() -> None:
    @dataclass(frozen=True)
    class Larger(Trained):
        batch_size: int = 64
        warmup: Annotated[float, Ge(0), Le(0.5)] = 0.1
        parts: dict[str, Annotated[int, Ge(1)]] = field(default_factory=dict)

    with pytest.raises(ConfigError) as error:
        Larger(batch_size=0, warmup=0.75, parts={"a": 0})
    assert error.value.problems == [
        "batch_size=0 must be at least 1",
        "warmup=0.75 must be at least 0 and at most 0.5",
        "parts.a=0 must be at least 1",
    ]


def test_ranges_in_words() -> None:
    texts = range_texts(Trained)
    assert (texts["warmup"], texts["either"], texts["path"]) == ("at least 0 and below 1", "at least 1", "not empty")
    assert (
        texts["sizes"] == "not empty and without repeats, each at least 1" and texts["mixes"] == "each a finite number"
    )
