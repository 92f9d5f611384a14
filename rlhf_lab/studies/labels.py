"""Labels of the values of swept settings (`study.labels`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config.overrides import level_name


def configured_label(labels: Mapping[str, Any], key: str, level: str) -> str | None:
    """Return the label of a level of a swept key from key → a text with "{}", or value → text; None without one."""
    names = labels.get(key)
    if isinstance(names, str):
        return names.replace("{}", level)
    by_level = {_level_of(value): name for value, name in (names or {}).items()}
    return str(by_level[level]) if level in by_level else None


def _level_of(value: object) -> str:
    """Return the level of a value as a study or its JSON file writes it: 0.0, "0.0" and "0" are the level "0"."""
    if not isinstance(value, str):
        return level_name(value)
    try:
        return level_name(float(value))
    except ValueError:
        return value
