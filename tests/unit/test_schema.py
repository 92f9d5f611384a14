"""Plain values become dataclasses, or one list of every problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from rlhf_lab.config import schema
from rlhf_lab.core.errors import require


@dataclass(frozen=True)
class Inner:
    weight: float = 1.0


@dataclass(frozen=True)
class Outer:
    count: int = 1
    rate: float = 0.5
    name: str = "x"
    flag: bool = False
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None
    either: int | str = 0
    betas: tuple[float, ...] = (0.9, 0.95)
    items: list[int] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        require((self.count >= 1, f"count={self.count} must be at least 1"))


def build(**values):
    problems: list[str] = []
    return schema.build(Outer, values, "o", problems), problems


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": 2}, 2.0),
        ({"rate": "1e-4"}, 1e-4),  # YAML 1.1 reads 1e-4 as text
        ({"limit": None}, None),
        ({"either": "a"}, "a"),
        ({"betas": [0.5, 1]}, (0.5, 1.0)),
        ({"items": [1, 2]}, [1, 2]),
        ({"table": {"a": 1}}, {"a": 1.0}),
        ({"inner": {"weight": 2}}, Inner(2.0)),
    ],
)
def test_values_that_fit(values, expected):
    built, problems = build(**values)
    assert problems == []
    found = getattr(built, next(iter(values)))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"count": "many"}, "o.count=many is text, expected a whole number"),
        ({"count": True}, "o.count=True is true/false, expected a whole number"),
        ({"rate": "hot"}, "o.rate=hot is text, expected a number"),
        ({"flag": 1}, "o.flag=1 is a whole number, expected true or false"),
        (
            {"name": 3},
            "o.name=3 is a whole number, expected text; "
            'quote it, o.name=\'"3"\' on a command line or name: "3" in a file',
        ),
        ({"mode": "fats"}, "o.mode=fats is not one of fast, slow; did you mean fast?"),
        ({"items": [1, "b"]}, "o.items[1]=b is text, expected a whole number"),
        ({"table": {"a": "b"}}, "o.table.a=b is text, expected a number"),
        ({"inner": {"wieght": 1}}, "o.inner.wieght is not a setting; did you mean weight?"),
        ({"cuont": 3}, "o.cuont is not a setting; did you mean count?"),
        ({"count": 0}, "o.count=0 must be at least 1"),
    ],
)
def test_values_that_do_not_fit(values, problem):
    assert build(**values)[1] == [problem]


def test_every_problem_is_reported_at_once():
    _, problems = build(count=0, rate="hot", mode="medium", nmae="y", inner={"weight": "w"})
    assert len(problems) == 5
    starts = ("o.count", "o.rate", "o.mode", "o.nmae", "o.inner.weight")
    assert all(any(p.startswith(start) for p in problems) for start in starts)


def test_an_unrecognisable_key_lists_the_known_ones():
    assert build(zzzzzz=1)[1] == [
        "o.zzzzzz is not a setting; known: betas, count, either, flag, inner, items, limit, mode, name, rate, table"
    ]


def test_defaults_are_plain_values():
    assert schema.defaults(Outer)["betas"] == [0.9, 0.95]
    assert schema.defaults(Outer)["inner"] == {"weight": 1.0}
    built, problems = build(**schema.defaults(Outer))
    assert (built, problems) == (Outer(), [])
