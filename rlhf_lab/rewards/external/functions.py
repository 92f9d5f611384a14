"""Functions of the user as rewards: from a Python file, or from an installed package by its entry point.

Neither torch nor, for `source_files`, the user's code is imported here.
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


def load_function(settings: PythonCallable) -> Callable[..., Any]:
    """The function that a callable reward names. Raises ConfigError where it is missing, broken, or no function.

    A file is read again each time, so that an edit takes effect within one notebook session.
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
    """(the setting as errors name it, what the entry point of this name loads)."""
    where = f"reward.terms.callable.name={name}"
    point = _entry_point(name)
    if point is None:
        installed = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none is installed"
        raise ConfigError(
            f"{where} is no entry point of the group {GROUP} ({installed}); declare it "
            f'in the pyproject.toml of your package: [project.entry-points."{GROUP}"], '
            f'{name} = "module:function"; or name a file: '
            "reward.terms.callable.function=my_rewards.py:brevity"
        )
    where += f", which is {point.value}"
    return where, import_user_code(where, point.load)


def source_files(settings: PythonCallable) -> list[Path]:
    """Files whose content decides what the function returns; empty where they cannot be found.

    Of a file: itself and the modules beside it that it imports. Of an entry point: its top-level package, or module.
    """
    if settings.function:
        return files_behind(settings.function)
    point = _entry_point(settings.name)
    spec = find_spec(point.module.partition(".")[0]) if point else None  # finding a top-level name imports nothing
    if spec is None:
        return []
    if spec.submodule_search_locations:
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        return sorted(file for folder in folders for file in folder.rglob("*.py"))
    return [Path(spec.origin)] if spec.origin and spec.has_location else []


def _entry_point(name: str) -> EntryPoint | None:
    return next((point for point in entry_points(group=GROUP) if point.name == name), None)
