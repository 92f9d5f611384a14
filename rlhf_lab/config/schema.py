"""Builds a dataclass from plain YAML values and reports every mistake at once: unknown keys, types, ranges.

Hydra accepts keys nobody reads (`+recipie=x`, `+algorithm.betta=1`). This module does not: each key must be a field,
each value must have the field's type, and each problem says where it is and what is expected.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from rlhf_lab.core.errors import ConfigError, Rule


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """'; did you mean x?' for the closest name, else the list of all names."""
    names = sorted(names)
    close = closest(word, names)
    return f"; did you mean {close}?" if close else f"; known: {', '.join(names) or 'none'}"


def closest(word: str, names: Iterable[str]) -> str | None:
    """The name that is spelt most like a word; None where none is close."""
    return next(iter(get_close_matches(word, sorted(names), n=1, cutoff=0.6)), None)


def only_known(field: str, names: Iterable[str], known: Collection[str]) -> Rule:
    """The rule that every name in a field is among those that are known."""
    unknown = [name for name in names if name not in known]
    suggestion = _suggest(unknown[0], known) if unknown else ""
    return not unknown, f"{field}: {', '.join(unknown)} is not one of {', '.join(known)}{suggestion}"


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Field → its type without the range that its annotation may have; `core/ranges.py` reads that."""
    return typing.get_type_hints(cls)


def defaults(cls: type) -> dict[str, Any]:
    """The default of every field of a settings class as plain YAML values, without creating an instance."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            values[field.name] = plain(field.default)
        elif isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            values[field.name] = defaults(field.default_factory)
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = plain(field.default_factory())
    return values


def plain(value: Any) -> Any:
    """Settings objects, mappings and tuples as plain YAML values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def build(cls: type, values: Any, where: str, problems: list[str], *, built: Mapping[str, object] | None = None) -> Any:
    """Create `cls` from a mapping; append every problem to `problems`, each prefixed with its dotted path.

    A field with a wrong value keeps its default so that the remaining rules are still checked. Returns None when the
    object cannot be created.

    Args:
        built: fields whose values are objects already; they are taken as they are.
    """
    if not isinstance(values, Mapping):
        problems.append(f"{where}={values!r} is {_name_of(values)}, expected a mapping with keys of {cls.__name__}")
        return None
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = field_types(cls)
    arguments = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in fields:
            moved = getattr(cls, "moved", {}).get(key)  # settings of earlier versions
            problems.append(f"{path} is not a setting{f'; {moved}' if moved else did_you_mean(str(key), fields)}")
            continue
        ok, converted = convert(hints[key], value, path, problems)
        if ok:
            arguments[key] = converted
    try:
        return cls(**(built or {}), **arguments)
    except (ConfigError, ValueError) as error:
        lines = error.problems if isinstance(error, ConfigError) else [str(error)]
        problems.extend(f"{where}.{line}" if where else line for line in lines)
    except TypeError as error:
        problems.append(f"{where or cls.__name__}: {error}")
    return None


def convert(hint: Any, value: Any, path: str, problems: list[str]) -> tuple[bool, Any]:
    """(True, value) when `value` fits the type hint, after the conversions YAML needs (int → float, list → tuple)."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any:
        return True, value
    if dataclasses.is_dataclass(hint):
        problems_before = len(problems)
        built = build(typing.cast(type, hint), value, path, problems)
        return built is not None and len(problems) == problems_before, built
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, path, problems)
    if origin is Literal:
        # types too: True == 1 and 1.0 == 1, and neither is the choice 1
        if value in arguments and type(value) in {type(choice) for choice in arguments}:
            return True, value
        choices = [str(choice) for choice in arguments]
        return _reject(problems, f"{path}={value} is not one of {', '.join(choices)}{_suggest(str(value), choices)}")
    if origin in (list, tuple):
        return _convert_list(origin, arguments, value, path, problems)
    if origin in (dict, Mapping):
        return _convert_mapping(arguments, value, path, problems)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return True, float(value)
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-4 as a string
        try:
            return True, float(value)
        except ValueError:
            pass
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return True, value
    expected = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(hint, str(hint))
    return _reject(problems, f"{path}={value} is {_name_of(value)}, expected {expected}")


def _convert_union(members: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> tuple[bool, Any]:
    """The first member of the union that fits; when none does, the problems of the first one."""
    if value is None and type(None) in members:
        return True, None
    rejections: list[list[str]] = []
    for member in members:
        if member is type(None):
            continue
        member_problems: list[str] = []
        ok, converted = convert(member, value, path, member_problems)
        if ok:
            return True, converted
        rejections.append(member_problems)
    problems.extend(rejections[0] if rejections else [f"{path}={value} is not allowed"])
    return False, None


def _convert_list(
    origin: type, arguments: tuple[Any, ...], value: Any, path: str, problems: list[str]
) -> tuple[bool, Any]:
    if not isinstance(value, (list, tuple)):
        return _reject(problems, f"{path}={value} is {_name_of(value)}, expected a list such as [a,b]")
    problems_before = len(problems)
    item_hint = arguments[0] if arguments else Any
    items = [convert(item_hint, item, f"{path}[{i}]", problems)[1] for i, item in enumerate(value)]
    return len(problems) == problems_before, origin(items)


def _convert_mapping(arguments: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> tuple[bool, Any]:
    if not isinstance(value, Mapping):
        return _reject(problems, f"{path}={value} is {_name_of(value)}, expected a mapping {{name: value}}")
    problems_before = len(problems)
    item_hint = arguments[1] if arguments else Any
    items = {str(key): convert(item_hint, item, f"{path}.{key}", problems)[1] for key, item in value.items()}
    return len(problems) == problems_before, items


def _reject(problems: list[str], message: str) -> tuple[bool, None]:
    problems.append(message)
    return False, None


def _suggest(word: str, names: Iterable[str]) -> str:
    close = closest(word, names)
    return f"; did you mean {close}?" if close else ""


def _name_of(value: Any) -> str:
    """A value's type in words, for messages."""
    if value is None:
        return "empty"
    names = {
        str: "text",
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        dict: "a mapping",
        list: "a list",
    }
    return names.get(type(value), type(value).__name__)
