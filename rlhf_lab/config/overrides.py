"""Overrides as text and as values: how to write them, and how to apply them to composed values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import registry

PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
MISSING = object()
"""Default of `value_at` for callers that distinguish a key without a value from one with the value null."""
SPECIAL_WORDS = ("true", "false", "null", "nan", "inf")
"""Words that Hydra's override grammar does not parse as text."""
ADDED = ("stages.", "needs.", "data.sources.", "agent.service.", "study.")
"""Prefixes of keys that the composed config need not have yet: the user chooses them, or another choice determines
them."""


def is_choice(key: str) -> bool:
    """Return True if an override chooses an option of a group instead of setting a value."""
    return re.split(r"[/@]", key)[0] in (*registry.groups(), "recipe")


def forced(key: str) -> str:
    """Return a key as an override names it.

    `++` adds keys that need not exist in the composed config: those below `stages`, `needs` and `study`, the sources of
    a mixture and the settings of the agents' service. A recipe is always added.
    """
    if key == "recipe":
        return "+recipe"
    return f"++{key}" if key.startswith((*ADDED, "data.sources=", "agent.service=")) else key


def literal(value: Any) -> str:
    """Return a value in Hydra's override grammar. Text that the grammar would parse as something else is quoted."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        items = ",".join(literal(item) for item in value)
        return f"[{items}]"
    if isinstance(value, dict):
        # The grammar has no quotes around keys, but backslashes.
        keys = [re.sub(r"([\\()\[\]{}:=, ])", r"\\\1", str(key)) for key in value]
        entries = ",".join(f"{key}:{literal(item)}" for key, item in zip(keys, value.values(), strict=True))
        return f"{{{entries}}}"
    return _text_literal(value) if isinstance(value, str) else str(value)


def as_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return key → value as overrides of a command line."""
    return [f"{forced(key)}={literal(value)}" for key, value in values.items()]


def _text_literal(text: str) -> str:
    """Return text so that the grammar parses it as the same text: unchanged if it is a plain word, else quoted."""
    is_plain = PLAIN_WORD.fullmatch(text) and text.lower() not in SPECIAL_WORDS
    if "${" in text or is_plain:
        return text
    # The grammar halves backslashes only before a quote: inside the text, or at its end.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'


def level_name(value: object) -> str:
    """Return a swept value as text, the same for 0.1, "0.1" and YAML's spelling, and for 1 and 1.0.

    The mapping {by: margin, keep: 0.5} becomes "by margin, keep 0.5"; lists become JSON.
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "default"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{key} {level_name(item)}" for key, item in value.items())
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if isinstance(value, list) else str(value)


def value_at(values: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value at a dotted key of nested mappings; `default` if there is none."""
    node: Any = values
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return default
        node = node[name]
    return node


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`; mappings are merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        # Any other combination replaces the old value, as Hydra does.
        both_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_mappings else value
    return merged


def set_value(values: dict[str, Any], key: str, value: Any, *, adds: bool = False) -> None:
    """Set a dotted key like an override. It must exist except below `ADDED` or with `adds`; mappings are merged.

    Raise KeyError for a key that does not exist, or that is below a value.
    """
    *path, last = key.split(".")
    is_added = adds or key.startswith(ADDED)
    node: Any = values
    for name in path:
        if is_added and isinstance(node, dict):
            node.setdefault(name, {})
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict) or (last not in node and not is_added):
        raise KeyError(key)
    both_mappings = isinstance(value, dict) and isinstance(node.get(last), dict)
    node[last] = merge(node[last], value) if both_mappings else value
