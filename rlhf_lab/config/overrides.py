"""Overrides as text and as values: how they are written, and what putting one into composed values does."""

from __future__ import annotations

import json
import re
from typing import Any

from rlhf_lab.config import registry

PLAIN_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
SPECIAL_WORDS = ("true", "false", "null", "nan", "inf")
"""Words that Hydra's override grammar does not read as text."""
ADDED = ("stages.", "needs.", "data.sources.", "agent.service.")
"""Mappings whose keys the user makes up, or that depend on another choice."""


def is_choice(key: str) -> bool:
    """Whether an override names an option of a group, not a value."""
    return re.split(r"[/@]", key)[0] in (*registry.groups(), "recipe")


def forced(key: str) -> str:
    """A key as an override names it. Those below `stages` and `needs`, the sources of a mix and the settings of
    the agents' service need not be in the composed config: `++` adds them."""
    return f"++{key}" if key.startswith((*ADDED, "data.sources=", "agent.service=")) else key


def literal(value: Any) -> str:
    """A value in Hydra's override grammar. Text that the grammar would read as something else is quoted."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list):
        return f"[{','.join(literal(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{literal(item)}' for key, item in value.items())}}}"
    return _text_literal(value) if isinstance(value, str) else str(value)


def _text_literal(text: str) -> str:
    """Text as the grammar reads it back: unchanged where it is a plain word or an interpolation, else in quotes."""
    if "${" in text or (PLAIN_WORD.fullmatch(text) and text.lower() not in SPECIAL_WORDS):
        return text
    # The grammar halves backslashes only where a quote follows them: inside the text, or at its end.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'


def level_name(value: object) -> str:
    """A swept value as text, the same for 0.1, "0.1" and YAML's spelling, for 1 and 1.0; {by: margin, keep: 0.5} as
    "by margin, keep 0.5", lists as JSON."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "default"}[value]
    if isinstance(value, dict):
        return ", ".join(f"{key} {level_name(item)}" for key, item in value.items())
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value) if isinstance(value, list) else str(value)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` onto `base`, mappings merged key by key."""
    merged = dict(base)
    for key, value in over.items():
        both_mappings = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both_mappings else value
    return merged


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key as an override does. Except below `ADDED` it has to exist; a mapping is merged into a mapping.

    Raises KeyError for a key that does not exist.
    """
    *path, last = key.split(".")
    is_added = key.startswith(ADDED)
    node: Any = values
    for name in path:
        if name not in node and is_added:
            node[name] = {}
        node = node[name] if isinstance(node, dict) else {}
    if last not in node and not is_added:
        raise KeyError(key)
    both_mappings = isinstance(value, dict) and isinstance(node.get(last), dict)
    node[last] = merge(node[last], value) if both_mappings else value
