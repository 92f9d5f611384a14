"""Construction of dataclasses from plain YAML values. All mistakes are reported at once: unknown keys, types, ranges.

Hydra accepts keys that nobody reads (`+recipie=x`, `+algorithm.betta=1`); this module rejects them. Each key must be a
field, each value must have the field's type, and each message says where the problem is and what is expected.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config import other_names
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.yaml_files import parse_yaml


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return '; did you mean x?' for the closest name, else a list of all names."""
    names = sorted(names)
    close = closest(word, names)
    if close:
        return f"; did you mean {close}?"
    listed = ", ".join(names) or "none"
    return f"; known: {listed}"


def closest(word: str, names: Iterable[str]) -> str | None:
    """Return the name whose spelling is closest to a word, whatever its case, or None if none is close."""
    spelled = {name.casefold(): name for name in sorted(names)}  # sorted, so that ties are deterministic
    matches = get_close_matches(word.casefold(), spelled, n=1, cutoff=0.6)
    return spelled[matches[0]] if matches else None


MAX_LISTED = 12
"""Maximum number of fields that a message lists if no name is close; longer lists are omitted."""


def _key_hint(key: str, path: str, fields: Collection[str]) -> str:
    """Return a hint for a key that is not a field: another tool's name for a field, the closest field, or all."""
    parent = path.rpartition(".")[0]
    # `hint` looks keys up in composed values, so the fields are put at the position of their section.
    section = _nested(parent, dict.fromkeys(fields))
    if hint := other_names.hint(path, section):
        return hint
    return did_you_mean(key, fields) if len(fields) <= MAX_LISTED else ""


def _nested(path: str, values: Any) -> dict[str, Any]:
    """Return nested mappings with `values` at a dotted path."""
    for name in reversed([name for name in path.split(".") if name]):
        values = {name: values}
    nested: dict[str, Any] = values
    return nested


def only_known(field: str, names: Iterable[str], known: Collection[str]) -> Rule:
    """Return the rule that every name in a field must be one of the known names."""
    unknown = [name for name in names if name not in known]
    suggestion = _suggest(unknown[0], known) if unknown else ""
    return not unknown, f"{field}: {', '.join(unknown)} is not one of {', '.join(known)}{suggestion}"


@cache
def field_types(cls: type) -> dict[str, Any]:
    """Return field → its type without the range in its annotation; `core/ranges.py` reads ranges."""
    return typing.get_type_hints(cls)


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of every field of a settings class as YAML values, without creating an instance."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            values[field.name] = to_plain_values(field.default)
        elif isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            values[field.name] = defaults(field.default_factory)
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = to_plain_values(field.default_factory())
    return values


def to_plain_values(value: Any) -> Any:
    """Convert settings objects, mappings and tuples to plain YAML values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain_values(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_values(item) for item in value]
    return value


def option_values(words: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """Return the values of options of the form name=value; append a problem for every other word."""
    problems += [f"{word!r} is not an option of the form name=value" for word in words if "=" not in word]
    pairs = [word.partition("=") for word in words if "=" in word]
    return {name: parse_yaml(text, name) for name, _, text in pairs}


def paths_and_options(
    words: Sequence[str], command: str, names: Sequence[str], problems: list[str], groups: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the paths among the words of a command, and its options by name; append a problem for an unknown option.

    The name of a path may contain an equals sign. `groups` are config groups that the command takes as well.
    """
    paths = [word for word in words if "=" not in word or Path(word).exists()]
    options = dict(word.split("=", 1) for word in words if word not in paths)
    unknown = [name for name in options if name not in names]
    problems += [f"{name} is not an option of {command}{did_you_mean(name, (*names, *groups))}" for name in unknown]
    return paths, options


def whole_numbers(
    options: Mapping[str, str], defaults: Mapping[str, int], problems: list[str], *, minimum: int = 0
) -> dict[str, int]:
    """Return the options that are integers of `minimum` or more; append a problem for every other value."""
    numbers = dict(defaults)
    for name in numbers:
        text = options.get(name, str(numbers[name]))
        if text.isdigit() and int(text) >= minimum:
            numbers[name] = int(text)
        else:
            problems.append(f"{name}={text} is not an integer of {minimum} or more")
    return numbers


def read_options(cls: type, words: Sequence[str]) -> Any:
    """Return the options of a sub-command. Raise ConfigError listing all problems."""
    problems: list[str] = []
    options = build(cls, option_values(words, problems), "", problems)
    if problems:
        raise ConfigError(problems)
    return options


def build(cls: type, values: Any, where: str, problems: list[str], *, built: Mapping[str, object] | None = None) -> Any:
    """Create `cls` from a mapping; append every problem to `problems`, each prefixed with its dotted path.

    A field with a wrong value keeps its default, so that the remaining rules are still checked. Return None if the
    object cannot be created.

    Args:
        built: fields whose values are already objects; they are used unchanged.
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
            problems.append(f"{path} is not a setting{_key_hint(str(key), path, fields)}")
            continue
        ok, converted = convert(hints[key], value, path, problems)
        if ok:
            arguments[key] = converted
    try:
        return cls(**(built or {}), **arguments)
    except (ConfigError, ValueError) as error:
        lines = error.problems if isinstance(error, ConfigError) else [str(error)]
        prefix = f"{where}." if where else ""
        problems.extend(f"{prefix}{line}" for line in lines)
    except TypeError as error:  # a required field is missing
        problems.append(f"{where or cls.__name__}: {error}")
    return None


def convert(hint: Any, value: Any, path: str, problems: list[str]) -> tuple[bool, Any]:
    """Return (True, converted value) if `value` fits the type hint. YAML needs int → float and list → tuple."""
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
        # Compare types as well: True == 1 and 1.0 == 1, but neither is the choice 1.
        if value in arguments and type(value) in {type(choice) for choice in arguments}:
            return True, value
        choices = [str(choice) for choice in arguments]
        suggestion = _suggest(str(value), choices)
        return _reject(problems, f"{path}={value} is not one of {', '.join(choices)}{suggestion}")
    if origin in (list, tuple):
        return _convert_list(origin, arguments, value, path, problems)
    if origin in (dict, Mapping):
        return _convert_mapping(arguments, value, path, problems)
    # Accept text as well: YAML 1.1 reads 1e-4 as a string.
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return True, float(value)
        except (ValueError, OverflowError):  # not a number, or an integer beyond the range of a float
            pass
    is_switch_as_number = hint is int and isinstance(value, bool)  # in Python a bool is an int
    if isinstance(value, hint) and not is_switch_as_number:
        return True, value
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    expected = names.get(hint, str(hint))
    # A name such as 123 is read as a number, so the message shows how to quote it.
    quoting = ""
    if hint is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        name = path.rpartition(".")[2]
        quoting = f'; quote it, {path}=\'"{value}"\' on a command line or {name}: "{value}" in a file'
    return _reject(problems, f"{path}={value} is {_name_of(value)}, expected {expected}{quoting}")


def _convert_union(members: tuple[Any, ...], value: Any, path: str, problems: list[str]) -> tuple[bool, Any]:
    """Convert to the first member of the union that fits; otherwise report the problems of the first member."""
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
    """Append a message and return the result of a failed conversion."""
    problems.append(message)
    return False, None


def _suggest(word: str, names: Iterable[str]) -> str:
    """Return '; did you mean x?' for the closest name; empty if none is close."""
    close = closest(word, names)
    return f"; did you mean {close}?" if close else ""


def _name_of(value: Any) -> str:
    """Return a value's type in words, for messages."""
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
