"""Ranges of settings: a field's annotation states its allowed values, and one function reports invalid values.

    batch_size: Annotated[int, Ge(1)] = 16
    warmup_fraction: Annotated[float, Ge(0), Lt(1)] = 0.05
    max_grad_norm: Annotated[float, Gt(0, hint="use 1e9 for no clipping")] = 1.0
    muon_lr: Annotated[float, Gt(0)] | None = None
    pass_at: tuple[Annotated[int, Ge(1)], ...] = (1,)

A dataclass that inherits `CheckedSettings` is checked whenever it is created, from YAML or in Python. Conditions on
several fields are returned by its method `rules`.
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

UNIONS = (typing.Union, types.UnionType)  # `Optional[X]` and `X | None` have different origins
LISTS = (list, tuple)
MAPPINGS = (dict, Mapping)


@dataclass(frozen=True)
class Range:
    """Condition on a value.

    Attributes:
        text: the range in words that continue "must be".
        hint: meaning of a bound, or what to write instead; appended to the message.
    """

    text: ClassVar[str] = ""
    hint: str = field(default="", kw_only=True)

    def allows(self, value: Any) -> bool:
        """Return True if a value is in the range."""
        raise NotImplementedError


class Finite(Range):
    """Number that is neither infinite nor NaN. Every bound below also requires this."""

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
        """Return True if a finite number is on the allowed side of the bound."""
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
    """Non-empty text, list or mapping."""

    text = "not empty"

    def allows(self, value: Any) -> bool:
        return bool(value)


class Distinct(Range):
    """List without repeated entries."""

    text = "without repeats"

    def allows(self, value: Any) -> bool:
        return len(set(value)) == len(value)


@dataclass(frozen=True)
class BySize:
    """Values of settings for models or runs of another size than the defaults are meant for.

    Attributes:
        tuned_by_model: settings whose value a model may set (`model.tuned`), because it depends on the model's size.
        small_scale: setting → value that trains a 0.1–1M parameter model from scratch well, measured on the embedded
            worlds; the defaults are for larger models.
        smoke: setting → its maximum at `size=smoke`.
        smoke_real: the same for pretrained models, which are a hundred times larger and already know a language.
    """

    tuned_by_model: tuple[str, ...] = ()
    small_scale: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    smoke_real: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckedSettings:
    """Base class of settings whose ranges and rules are checked together when they are created.

    Class attributes:
        by_size: values of the settings for models or runs of another size than the defaults are meant for.
    """

    by_size: ClassVar[BySize] = BySize()

    @classmethod
    def prepared(cls, values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
        """Convert values from YAML to the types of the fields before they are checked; None if that is not possible.

        A subclass that accepts another spelling of a setting overrides this.
        """
        del problems
        return values

    def __post_init__(self) -> None:
        # `require` reports broken ranges and broken rules in one error, so that the user can fix all of them at once.
        broken_ranges = [(False, problem) for problem in range_problems(self)]
        require(*broken_ranges, *self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """Return (condition, message) pairs about several fields; a subclass adds its own to `super().rules()`."""
        return ()


def range_problems(settings: Any) -> list[str]:
    """Return one sentence for each value of a dataclass that is outside the range of its field."""
    cls: type = type(settings)
    problems: list[str] = []
    for name, hint in ranged_fields(cls).items():
        problems += _problems(hint, getattr(settings, name), name)
    return problems


def range_texts(cls: type) -> dict[str, str]:
    """Return field → its range in words for a dataclass."""
    return {name: _text(hint) for name, hint in ranged_fields(cls).items()}


@cache
def ranged_fields(cls: type) -> dict[str, Any]:
    """Return field → annotation for the fields of a dataclass that have a range.

    A subclass that only changes the default of a field keeps the range of its base class.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    ranged: dict[str, Any] = {}
    # From the base class to the class itself, so that a new annotation in a subclass replaces the inherited one.
    for base in reversed(cls.__mro__):
        own_names = names & inspect.get_annotations(base).keys()
        hints = typing.get_type_hints(base, include_extras=True) if own_names else {}
        ranged |= {name: hint for name, hint in hints.items() if name in own_names and _text(hint)}
    return ranged


def _problems(hint: Any, value: Any, name: str) -> Iterator[str]:
    """Yield the problems of a value and of the values inside it, each named by its path."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        # One message names all violated and satisfied bounds, because "at least 0 and below 1" is easier to correct.
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
    """Return True if a value has the type of a union's member, regardless of that member's range."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    kind = typing.get_origin(hint) or hint
    # A float field accepts ints, as Python and YAML do.
    if kind in (int, float):
        return isinstance(value, Real)
    return isinstance(value, LISTS) if kind in LISTS else isinstance(kind, type) and isinstance(value, kind)


def _message(name: str, value: Any, ranges: Sequence[Range]) -> str:
    """Return the sentence about a value outside its range. All messages about ranges are written here."""
    hints = "".join(f"; {one.hint}" for one in ranges if one.hint)
    is_number = any(isinstance(one, (Finite, Bound)) for one in ranges)
    if not is_number and not value:
        state = "not set" if isinstance(value, str) else "empty"
        return f"{name} is {state}{hints}"
    required = [one.text for one in ranges if not isinstance(one, (Finite, NotEmpty))]
    finite = ["a finite number"] if is_number and not Finite().allows(value) else []
    # Show a tuple as the list that the user wrote in YAML.
    shown = list(value) if isinstance(value, tuple) else value
    expected = " ".join([*finite, " and ".join(required)]).strip()
    return f"{name}={shown} must be {expected}{hints}"


def _text(hint: Any) -> str:
    """Return the range of an annotation in words; empty if it has none."""
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
    """Return the ranges in the metadata of an `Annotated` type."""
    return [one for one in hint.__metadata__ if isinstance(one, Range)]
