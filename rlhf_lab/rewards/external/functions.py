"""Users' functions as rewards: loaded from a Python file, or from an installed package by its entry point.

This module does not import torch. `source_files` does not import the user's code either.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.user_code import files_behind, import_user_code, load_from_file
from rlhf_lab.rewards.external.settings import PythonCallable

GROUP = "rlhf_lab.rewards"
"""Group of entry points that name reward functions."""


def load_function(settings: PythonCallable) -> Callable[..., Any]:
    """Return the function that a callable reward names. Raise ConfigError if it is missing, broken, or not a function.

    A file is read again at each call, so that an edit takes effect within a notebook session.
    """
    if settings.function:
        where = f"reward.terms.callable.function={settings.function}"
        function = load_from_file(where, settings.function)
    else:
        where, function = _load_entry_point(settings.name)
    if not callable(function):
        raise ConfigError(f"{where} is {type(function).__name__}, not a function of (prompts, responses)")
    return function


def _load_entry_point(name: str) -> tuple[str, Any]:
    """Return (name of the setting and entry point for error messages, object that the entry point loads)."""
    where = f"reward.terms.callable.name={name}"
    point = _entry_point(name)
    if point is None:
        installed = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none is installed"
        raise ConfigError(
            f"{where} is not an entry point of the group {GROUP} ({installed}); declare it "
            f'in the pyproject.toml of your package: [project.entry-points."{GROUP}"], '
            f'{name} = "module:function"; or name a file: '
            "reward.terms.callable.function=my_rewards.py:brevity"
        )
    where += f", which is {point.value}"
    return where, import_user_code(where, point.load)


def source_files(settings: PythonCallable) -> list[Path]:
    """Return the files whose content determines what the function returns; empty if they cannot be found.

    For a function in a file: that file and the modules next to it that it imports. For an entry point: its top-level
    package or module.
    """
    if settings.function:
        return files_behind(settings.function)
    point = _entry_point(settings.name)
    spec = find_spec(point.module.partition(".")[0]) if point else None
    if spec is None:
        return []
    # A change anywhere in the package may change the function, so all its files count.
    if spec.submodule_search_locations:
        folders = [Path(directory) for directory in spec.submodule_search_locations]
        return sorted(file for directory in folders for file in directory.rglob("*.py"))
    return [Path(spec.origin)] if spec.origin and spec.has_location else []


def _entry_point(name: str) -> EntryPoint | None:
    """Return the entry point with a name, or None. Raise ConfigError if several packages define it."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    # The same package may be found twice, e.g. in two directories of sys.path; only different values are ambiguous.
    if len({point.value for point in found}) > 1:
        positions = " and ".join(f"{point.value}{f' of {point.dist.name}' if point.dist else ''}" for point in found)
        raise ConfigError(
            f"reward.terms.callable.name={name} is an entry point of several packages ({positions}); uninstall one of "
            "them, or name a file: reward.terms.callable.function=my_rewards.py:brevity"
        )
    return found[0] if found else None
