"""Location of conf/ and recipes/, and reading of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_lab.core.yaml_files import read_mapping

PACKAGE = Path(__file__).resolve().parents[1]


def directory(name: str) -> Path:
    """Return the path of conf/ or recipes/: inside the package in a wheel, next to it in a checkout."""
    # The wheel copies conf/ and recipes/ into the package; a checkout has them next to it.
    in_wheel = PACKAGE / name
    in_checkout = PACKAGE.parent / name
    return in_wheel if in_wheel.is_dir() else in_checkout


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file."""
    return read_mapping(path, "settings, such as seed: 1")
