"""Functions of the user as rewards: from a Python file, or from an installed package by its entry point.

Neither torch nor, for `source_files`, the user's code is imported here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.rewards.external.settings import PythonCallable

GROUP = "rlhf_lab.rewards"


def load_function(settings: PythonCallable) -> Callable[..., Any]:
    """The function that a callable reward names. Raises ConfigError where it is missing, broken, or no function.

    A file is read again each time, so that an edit takes effect within one notebook session.
    """
    if settings.function:
        where, function = _load_from_file(settings.function)
    else:
        where, function = _load_entry_point(settings.name)
    if not callable(function):
        raise ConfigError(f"{where} is {type(function).__name__}, not a function of (prompts, responses)")
    return function


def _load_from_file(setting: str) -> tuple[str, Any]:
    """(the setting as errors name it, what FILE.py:NAME names)."""
    where = f"reward.terms.callable.function={setting}"
    path, name = _file_and_name(setting)
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path} (relative to {Path.cwd()})")
    module = _import_for(where, lambda: _run_module(path))
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        listed = ", ".join(functions) or "none"
        raise ConfigError(f"{where}: {path} has no function {name}; it has {listed}")
    return where, getattr(module, name)


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
    return where, _import_for(where, point.load)


def source_files(settings: PythonCallable) -> list[Path]:
    """Files whose content decides what the function returns; empty where they cannot be found.

    Of a file: itself and the modules beside it that it imports. Of an entry point: its top-level package, or module.
    """
    if settings.function:
        path, _ = _file_and_name(settings.function)
        return _with_neighbours(path) if path.is_file() else []
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


def _file_and_name(function: str) -> tuple[Path, str]:
    """FILE.py:NAME → the file, relative to the working directory, and the name."""
    file, _, name = function.rpartition(":")
    return Path(file).expanduser(), name


def _run_module(path: Path) -> ModuleType:
    """Run a file as a module. It can import the modules beside it, as a script can."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # at the end: a file of the user does not hide an installed package
    # Neighbours that were imported before may have been edited since, as in a notebook: they are imported again.
    neighbours = {str(file) for file in _with_neighbours(path.resolve())}
    for name, imported in list(sys.modules.items()):
        if getattr(imported, "__file__", None) in neighbours:
            del sys.modules[name]
    module = ModuleType(f"rlhf_lab_reward_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    # Compiled here: Python's own loader takes stored bytecode for an edit within the same second.
    exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))
    return module


def _import_for(where: str, load: Callable[[], Any]) -> Any:
    """Import what a setting names. Raises ConfigError, with the setting, for whatever the import raises."""
    try:
        return load()
    except Exception as error:  # the module is the user's, and importing it can fail in any way
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {error}); correct the module"
        ) from error


def _with_neighbours(path: Path) -> list[Path]:
    """A file and the modules of its folder that it imports, directly or through one another."""
    files: list[Path] = []
    pending = [path]
    while pending:
        file = pending.pop()
        if file in files:
            continue
        files.append(file)
        for name in _imported_names(file):
            candidates = (path.parent / f"{name}.py", path.parent / name / "__init__.py")
            pending += [candidate for candidate in candidates if candidate.is_file()]
    return sorted(files)


def _imported_names(file: Path) -> set[str]:
    """Top-level names that a file imports; none for one that is no Python."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names
