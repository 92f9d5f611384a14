"""Documentation of settings fields: meaning, type, unit and sources, read from the code of the settings classes.

A field's meaning is the entry in the `Args:` section of the class that defines it. It is not repeated in separate
documentation, so the two cannot disagree. A field's range is in its annotation: `core/ranges.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from functools import cache
from typing import Any, Literal

UNIT_SUFFIXES = {
    "_s": "seconds",
    "_gib": "GiB",
    "_tokens": "tokens",
    "_steps": "steps",
    "_rows": "rows",
    "_fraction": "share",
}
UNITS = r"1/nats|nats|tokens|seconds|optimiser steps|iterations|GiB|passes over the data|standard errors"
PLAIN_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}


@cache
def meanings(cls: type) -> dict[str, str]:
    """Return field → its meaning in the class, or in the class from which it is inherited."""
    texts: dict[str, str] = {}
    # Base classes first, so that a subclass can redefine the meaning of an inherited field.
    for base in reversed(cls.__mro__):
        texts |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
    return {field.name: texts[field.name] for field in dataclasses.fields(cls) if field.name in texts}


def _arguments(text: str) -> dict[str, str]:
    """Return the entries of an `Args:` section. `a, b: text` applies to both; an indented line continues an entry."""
    _, _, section = text.partition("Args:\n")
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break  # another section
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            entries |= dict.fromkeys(names, entry[2])
        elif line.strip():
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    return entries


def summary(cls: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\n")[0].split())


def unit(name: str, meaning: str) -> str:
    """Return the unit of a field from its meaning, or else from its name; empty if neither names one."""
    # The meaning is more specific than the suffix of a name, so it is read first.
    named = re.search(rf"^({UNITS})\b|\bin ({UNITS})\b", meaning)
    if named:
        return named[1] or named[2]
    return next((suffix_unit for suffix, suffix_unit in UNIT_SUFFIXES.items() if name.endswith(suffix)), "")


def sources(meaning: str) -> list[str]:
    """Return the papers and pages that a text cites."""
    return re.findall(r"arXiv:\d{4}\.\d{4,5}|https?://[^\s)]+", meaning)


def choices(hint: Any) -> list[str]:
    """Return the values that a type lists by name; empty for a type that allows other values."""
    if typing.get_origin(hint) is Literal:
        return [str(value) for value in typing.get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        choices_of = [choices(member) for member in members if member is not type(None)]
        if not all(choices_of):  # one member allows any number or text, so there is no list of values
            return []
        null = ["null"] if type(None) in members else []
        return [*(value for values in choices_of for value in values), *null]
    return []


def type_text(hint: Any) -> str:
    """Return a type in words: `number or null`, `adamw | muon`, `list of text`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return " | ".join(choices(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if member is type(None) else type_text(member) for member in arguments)
    if origin in (list, tuple):
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if origin is dict:
        return f"mapping of {type_text(arguments[1])}"
    return PLAIN_TYPES.get(hint) or str(getattr(hint, "__name__", hint))
