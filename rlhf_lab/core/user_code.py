"""User code: the object that FILE.py:NAME refers to, and the files whose content determines what it does."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_lab.core.errors import ConfigError

_DIRECTORIES: list[Path] = []
"""Directories of user code at the end of `sys.path`, that of the latest file first."""


def load_from_file(where: str, setting: str) -> Any:
    """Load the object that FILE.py:NAME refers to. Raise ConfigError if it is missing or broken.

    The file is read again at each call, so that an edit takes effect within a notebook session.

    Args:
        where: name of the setting in error messages.
        setting: value of the form FILE.py:NAME.
    """
    path, name = _file_and_name(setting)
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path} (relative to {Path.cwd()})")
    try:
        module = _run_module(path)
    except Exception as error:  # importing user code can fail in any way
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {error}); correct the module"
        ) from error
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        listed = ", ".join(functions) or "none"
        raise ConfigError(f"{where}: {path} has no function {name}; it has {listed}")
    return getattr(module, name)


def files_behind(setting: str) -> list[Path]:
    """Return the file of FILE.py:NAME and the modules next to it that it imports; empty if the file does not exist."""
    path, _ = _file_and_name(setting)
    return _with_neighbours(path) if path.is_file() else []


def raised_in(error: BaseException, files: Collection[Path]) -> str:
    """Return file and line of an error: "mine.py, line 4".

    They are those of the innermost call in `files`, or else of the innermost call in any file.
    """
    frames = traceback.extract_tb(error.__traceback__)
    resolved = {str(file.resolve()) for file in files}
    own_frames = [frame for frame in frames if frame.filename in resolved]
    frame = own_frames[-1] if own_frames else frames[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def names_object(setting: str) -> bool:
    """Return True if a setting has the form FILE.py:NAME."""
    file, colon, name = setting.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


def _file_and_name(function: str) -> tuple[Path, str]:
    """Split FILE.py:NAME into the file, relative to the working directory, and the name."""
    file, _, name = function.rpartition(":")
    return Path(file).expanduser(), name


def _run_module(path: Path) -> ModuleType:
    """Run a file as a module. Like a script, it can import the modules next to it."""
    _search_first(path.resolve().parent)
    # Import neighbouring modules again: in a notebook session they may have been edited since the last import. A module
    # of the same name that other user code has imported from its own directory is another one.
    # A directory without __init__.py is imported as well, although it is no file of its own.
    files = _with_neighbours(path.resolve())
    names = {*map(module_name, files), *(name for file in files for name in _imported_names(file))}
    for name, imported in list(sys.modules.items()):
        if name.partition(".")[0] in names and _import_directory(name, imported) in _DIRECTORIES:
            del sys.modules[name]
    module = ModuleType(f"rlhf_lab_user_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    # Compile here and store no bytecode of neighbours. Python's own loader compares modification times in seconds, so
    # it would use old bytecode after an edit within the same second.
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    return module


def _search_first(directory: Path) -> None:
    """Let imports find the modules of a directory before those next to other user code."""
    if directory not in _DIRECTORIES and str(directory) in sys.path:
        return  # the user's own path
    if directory in _DIRECTORIES:
        _DIRECTORIES.remove(directory)
    _DIRECTORIES.insert(0, directory)
    ours = list(map(str, _DIRECTORIES))
    # at the end, so that a user's file never hides an installed package
    sys.path[:] = [*(entry for entry in sys.path if entry not in ours), *ours]


def _import_directory(name: str, module: ModuleType) -> Path | None:
    """Return the directory from which a module, or the package that contains it, was imported."""
    # a directory without __init__.py has no file
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if place is None:
        return None
    file = Path(place)
    levels = name.count(".") + (file.name == "__init__.py")
    return file.parents[levels] if levels < len(file.parents) else None


def module_name(file: Path) -> str:
    """Return the name under which a file is imported from its directory."""
    return file.parent.name if file.name == "__init__.py" else file.stem


def _with_neighbours(path: Path) -> list[Path]:
    """Return a file and the modules of its directory that it imports, directly or indirectly."""
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
    """Return the top-level names that a file imports; empty if it is not valid Python."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # Only the top-level name decides which file next to the module is imported.
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names
