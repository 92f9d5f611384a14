"""Where conf/ and recipes/ lie, and how their files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """conf/ or recipes/: inside the package in a wheel, beside it in a checkout."""
    in_wheel = PACKAGE / name
    in_checkout = PACKAGE.parent / name
    return in_wheel if in_wheel.is_dir() else in_checkout


def read_yaml(path: Path) -> dict[str, Any]:
    return parse_yaml(path.read_text(encoding="utf-8")) or {}


def parse_yaml(text: str) -> Any:
    """The values of a text. Raises yaml.YAMLError."""
    # The C loader is several times faster, but not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, Loader=loader)
