"""Every settings class and section: its defaults are in their ranges, and a value just outside a range is refused."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any

import pytest

from rlhf_lab.config import registry, schema
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.ranges import CheckedSettings, Distinct, Finite, Ge, Gt, Le, Lt, NotEmpty, Range, ranged_fields
from rlhf_lab.training.run_settings import Checkpoint

KINDS = [registry.settings_class(group, kind) for group in registry.groups() for kind in registry.kinds(group)]
SECTIONS = [section.cls for section in registry.sections().values()]
NUMBERS = (Finite, Ge, Gt, Le, Lt)


def nested(cls: type) -> Iterator[type]:
    """A settings class and the classes of its fields."""
    yield cls
    for hint in schema.field_types(cls).values():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from nested(hint)


CLASSES = list(dict.fromkeys(part for cls in (*KINDS, *SECTIONS) for part in nested(cls)))


def outside(one: Range, is_whole: bool) -> Any:
    """The value nearest to a range that is not in it."""
    match one:
        case Gt(bound) | Lt(bound):
            return bound
        case Ge(bound):
            return bound - 1 if is_whole else math.nextafter(bound, -math.inf)
        case Le(bound):
            return bound + 1 if is_whole else math.nextafter(bound, math.inf)
    return math.nan


def type_of_empty(hint: Any) -> type:
    """str, tuple or dict: the type of an empty value."""
    origin = typing.get_origin(hint) or hint
    return origin if origin in (str, dict) else tuple


def refused_values(hint: Any) -> Iterator[tuple[str, Any]]:
    """(path below the field, value of the field) for every range within an annotation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for one in hint.__metadata__:
            if isinstance(one, NUMBERS):
                yield "", outside(one, arguments[0] is int)
                yield "", math.nan
            elif isinstance(one, NotEmpty):
                yield "", type_of_empty(arguments[0])()
            elif isinstance(one, Distinct):
                yield "", ("a", "a")
        yield from refused_values(arguments[0])
    elif origin in (typing.Union, UnionType):
        for member in arguments:
            yield from refused_values(member)
    elif origin in (list, tuple):
        yield from ((f"[0]{path}", (value,)) for path, value in refused_values(arguments[0]))
    elif origin is dict:
        yield from ((f".key{path}", {"key": value}) for path, value in refused_values(arguments[1]))


def problems_of(cls: type, **values: Any) -> list[str]:
    try:
        cls(**values)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_defaults_are_in_range_and_values_just_outside_are_not(cls: type) -> None:
    assert [problem for problem in problems_of(cls) if " must be " in problem] == []
    for name, hint in ranged_fields(cls).items():
        assert issubclass(cls, CheckedSettings), f"{cls} has ranges that nothing checks"
        for path, value in refused_values(hint):
            problems = problems_of(cls, **{name: value})
            about = [problem for problem in problems if problem.startswith((f"{name}{path}=", f"{name} is "))]
            assert about, f"{name}={value} is not refused: {problems}"


def test_the_walk_sees_the_settings() -> None:
    refused = [value for cls in CLASSES for hint in ranged_fields(cls).values() for value in refused_values(hint)]
    assert len(CLASSES) > 60
    assert len(refused) > 200


def test_minus_one_is_not_a_number_of_steps() -> None:
    """It would save after every step, because every number of steps is a multiple of it."""
    with pytest.raises(ConfigError, match="every_steps=-1 must be at least 0; 0 writes none"):
        Checkpoint(every_steps=-1)
