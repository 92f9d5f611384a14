"""Labels of the values of swept settings (`study.labels`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def configured_label(labels: Mapping[str, Any], key: str, level: str) -> str | None:
    """Return the label of a level of a swept key; None if the study names none.

    Args:
        labels: swept key → labels of its values: a text with "{}", or value → text.
    """
    names = labels.get(key)
    if isinstance(names, str):
        return names.replace("{}", level)
    return str(names[level]) if names and level in names else None
