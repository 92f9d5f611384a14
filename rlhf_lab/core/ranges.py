"""Ranges of settings: what a field may hold stands in its annotation, and one writer says what is wrong with a value.

    batch_size: Annotated[int, Ge(1)] = 16
    warmup_fraction: Annotated[float, Ge(0), Lt(1)] = 0.05
    max_grad_norm: Annotated[float, Gt(0, hint="use 1e9 for no clipping")] = 1.0
    muon_lr: Annotated[float, Gt(0)] | None = None
    pass_at: tuple[Annotated[int, Ge(1)], ...] = (1,)

A dataclass that inherits `CheckedSettings` is checked whenever it is created, from YAML or in Python. Conditions on
several fields are its `rules`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from typing import Annotated, Any, ClassVar

from rlhf_lab.core.errors import Rule, require

UNIONS = (typing.Union, types.UnionType)
LISTS = (list, tuple)
MAPPINGS = (dict, Mapping)


@dataclass(frozen=True)
class Range:
    """What a value must be.

    Class attributes:
        text: the range in words that continue "must be".

    Args:
        hint: what a bound means or what to write instead; it ends the message.
    """

    text: ClassVar[str] = ""
    hint: str = field(default="", kw_only=True)

    def allows(self, value: Any) -> bool:
        """Whether a value is in the range."""
        raise NotImplementedError


class Finite(Range):
    """A number that is neither infinite nor NaN. Every bound below asks for that as well."""

    text = "a finite number"

    def allows(self, value: Any) -> bool:
        return isinstance(value, Real) and math.isfinite(value)


@dataclass(frozen=True)
class Bound(Range):
    """One end of a range of numbers: `Gt` (>), `Ge` (≥), `Lt` (<) and `Le` (≤)."""

    words: ClassVar[str]
    bound: float

    @property
    def text(self) -> str:  # type: ignore[override]  # depends on the bound here, on the class elsewhere
        return f"{self.words} {self.bound}"

    def allows(self, value: Any) -> bool:
        return Finite().allows(value) and self.holds(value)

    def holds(self, number: float) -> bool:
        """Whether a finite number is on the right side of the bound."""
        raise NotImplementedError


class Gt(Bound):
    words = "above"

    def holds(self, number: float) -> bool:
        return number > self.bound


class Ge(Bound):
    words = "at least"

    def holds(self, number: float) -> bool:
        return number >= self.bound


class Lt(Bound):
    words = "below"

    def holds(self, number: float) -> bool:
        return number < self.bound


class Le(Bound):
    words = "at most"

    def holds(self, number: float) -> bool:
        return number <= self.bound


class NotEmpty(Range):
    """Text, a list or a mapping with something in it."""

    text = "not empty"

    def allows(self, value: Any) -> bool:
        return bool(value)


class Distinct(Range):
    """A list without repeated entries."""

    text = "without repeats"

    def allows(self, value: Any) -> bool:
        return len(set(value)) == len(value)


@dataclass(frozen=True)
class CheckedSettings:
    """Base of settings whose ranges and rules are checked together when they are created."""

    def __post_init__(self) -> None:
        broken_ranges = [(False, problem) for problem in range_problems(self)]
        require(*broken_ranges, *self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """(condition, message) pairs about several fields; a subclass adds its own to those of `super().rules()`."""
        return ()


def range_problems(settings: Any) -> list[str]:
    """One sentence for each value of a dataclass that is outside the range of its field."""
    cls: type = type(settings)
    hints = ranged_fields(cls)
    return [problem for name, hint in hints.items() for problem in _problems(hint, getattr(settings, name), name)]


def range_texts(cls: type) -> dict[str, str]:
    """Field of a dataclass → its range in words."""
    return {name: _text(hint) for name, hint in ranged_fields(cls).items()}


@cache
def ranged_fields(cls: type) -> dict[str, Any]:
    """Field of a dataclass → its annotation, for fields that have a range.

    A subclass that only gives a field another default keeps the range of its base.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    ranged: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own_names = names & inspect.get_annotations(base).keys()
        hints = typing.get_type_hints(base, include_extras=True) if own_names else {}
        ranged |= {name: hint for name, hint in hints.items() if name in own_names and _text(hint)}
    return ranged


def _problems(hint: Any, value: Any, name: str) -> Iterator[str]:
    """What is wrong with a value and with the values inside it, each named by its path."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        ranges = _ranges(hint)
        if not all(one.allows(value) for one in ranges):
            yield _message(name, value, ranges)
        yield from _problems(arguments[0], value, name)
    elif origin in UNIONS:
        for member in arguments:
            if _is_kind(member, value):
                yield from _problems(member, value, name)
    elif origin in LISTS:
        for i, item in enumerate(value):
            yield from _problems(arguments[0], item, f"{name}[{i}]")
    elif origin in MAPPINGS:
        for key, item in value.items():
            yield from _problems(arguments[1], item, f"{name}.{key}")


def _is_kind(hint: Any, value: Any) -> bool:
    """Whether a value has the type of a union's member, whatever the range of that member."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return isinstance(value, Real)
    return isinstance(value, LISTS) if kind in LISTS else isinstance(kind, type) and isinstance(value, kind)


def _message(name: str, value: Any, ranges: Sequence[Range]) -> str:
    """The sentence about a value outside its range. Every message about a range is written here."""
    hints = "".join(f"; {one.hint}" for one in ranges if one.hint)
    is_number = any(isinstance(one, (Finite, Bound)) for one in ranges)
    if not is_number and not value:
        return f"{name} is {'not set' if isinstance(value, str) else 'empty'}{hints}"
    required = [one.text for one in ranges if not isinstance(one, (Finite, NotEmpty))]
    finite = ["a finite number"] if is_number and not Finite().allows(value) else []
    shown = list(value) if isinstance(value, tuple) else value
    return f"{name}={shown} must be {' '.join([*finite, ' and '.join(required)]).strip()}{hints}"


def _text(hint: Any) -> str:
    """The range of an annotation in words; empty where it has none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        own_text = " and ".join(one.text for one in _ranges(hint))
        return ", ".join(text for text in (own_text, _text(arguments[0])) if text)
    if origin in UNIONS:
        return " or ".join(text for text in map(_text, arguments) if text)
    if origin in LISTS or origin in MAPPINGS:
        item_text = _text(arguments[0 if origin in LISTS else 1])
        return f"each {item_text.removeprefix('each ')}" if item_text else ""
    return ""


def _ranges(hint: Any) -> list[Range]:
    """The ranges in the metadata of an `Annotated` type."""
    return [one for one in hint.__metadata__ if isinstance(one, Range)]
