"""What the settings classes say of their fields: meaning, type, unit, range and source, read from their code.

A field's meaning is read from the `Args:` section of the class that defines it, its range from the message of the rule
that checks it. Neither is written a second time for the documentation, so the two cannot disagree.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
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
RANGES = (
    (r"^ must be (?:0 or above)", "0 or above"),
    (r"^ must be above ([\w.-]+?)(?=$|[;,. ])", r"above \1"),
    (r"^(?: must be|;) at least ([\w.-]+?)(?=$|[;,. ])", r"\1 or above"),
    (r"^; .* needs at least ([\w.-]+)", r"\1 or above"),
    (r"^ is (?:negative|below 0)", "0 or above"),
    (r"^ is outside ([\[(][^\])]+[\])])", r"in \1"),
    (r"^ (?:must be|is a probability,) (.+)", r"\1"),
)
"""How a rule's message goes on after `name=value` → the range that it states."""


@cache
def meanings(cls: type) -> dict[str, str]:
    """Field → what its class, or the class that it inherits the field from, says of it."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):  # a subclass may say something else of a field than its base
        texts |= _arguments(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
    return {field.name: texts[field.name] for field in dataclasses.fields(cls) if field.name in texts}


def _arguments(text: str) -> dict[str, str]:
    """The entries of an `Args:` section: `a, b: text` says the same of both; an indented line goes on."""
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
    """The first paragraph of a class's docstring."""
    return " ".join(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\n")[0].split())


@cache
def ranges(cls: type) -> dict[str, str]:
    """Field → the range that a rule of the class states, for rules about one field."""
    stated: dict[str, str] = {}
    package = cls.__module__.partition(".")[0]
    for base in reversed(cls.__mro__):
        for name in ("__post_init__", "rules"):
            method = base.__dict__.get(name)
            if inspect.isfunction(method) and method.__module__.startswith(package):
                source = textwrap.dedent(inspect.getsource(method))
                stated |= dict(_stated_ranges(ast.parse(source)))
    return stated


def _stated_ranges(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(field, range) of every message of the form f"field={…} must be …"."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr) or len(node.values) != 3:
            continue
        before, _, after = node.values
        if not isinstance(before, ast.Constant) or not isinstance(after, ast.Constant):
            continue
        field = re.fullmatch(r"(\w+)=", str(before.value))
        if not field:
            continue
        # What follows a semicolon is advice, unless the rule itself does.
        rule = str(after.value).partition(";")[0] or str(after.value)
        for pattern, wording in RANGES:
            match = re.match(pattern, rule)
            if match:
                yield field[1], match.expand(wording).strip()
                break


def unit(name: str, meaning: str) -> str:
    """The unit of a field, from its name or from its meaning where that names one; empty without."""
    named = re.search(rf"^({UNITS})\b|\bin ({UNITS})\b", meaning)
    if named:
        return named[1] or named[2]
    return next((suffix_unit for suffix, suffix_unit in UNIT_SUFFIXES.items() if name.endswith(suffix)), "")


def sources(meaning: str) -> list[str]:
    """Papers and pages that a text cites."""
    return re.findall(r"arXiv:\d{4}\.\d{4,5}|https?://[^\s)]+", meaning)


def choices(hint: Any) -> list[str]:
    """The values that a type allows by name; none for a type that allows others."""
    if typing.get_origin(hint) is Literal:
        return [str(value) for value in typing.get_args(hint)]
    if hint is bool:
        return ["true", "false"]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        choices_of = [choices(member) for member in members if member is not type(None)]
        if not all(choices_of):  # one member takes any number or text, so there is no list to give
            return []
        null = ["null"] if type(None) in members else []
        return [*(value for values in choices_of for value in values), *null]
    return []


def type_text(hint: Any) -> str:
    """A type as a person writes it: `number or null`, `adamw | muon`, `list of text`."""
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
