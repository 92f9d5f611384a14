"""Python that the user wrote: what FILE.py:NAME names, and the files whose content decides what it does."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_lab.core.errors import ConfigError


def load_from_file(where: str, setting: str) -> Any:
    """What FILE.py:NAME names. Raises ConfigError where it is missing or broken.

    A file is read again each time, so that an edit takes effect within one notebook session.

    Args:
        where: the setting as errors name it.
    """
    path, name = _file_and_name(setting)
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path} (relative to {Path.cwd()})")
    module = import_user_code(where, lambda: _run_module(path))
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        listed = ", ".join(functions) or "none"
        raise ConfigError(f"{where}: {path} has no function {name}; it has {listed}")
    return getattr(module, name)


def files_behind(setting: str) -> list[Path]:
    """The file that FILE.py:NAME names and the modules beside it that it imports; none where there is no such file."""
    path, _ = _file_and_name(setting)
    return _with_neighbours(path) if path.is_file() else []


def import_user_code(where: str, load: Callable[[], Any]) -> Any:
    """Import what a setting names. Raises ConfigError, with the setting, for whatever the import raises."""
    try:
        return load()
    except Exception as error:  # the module is the user's, and importing it can fail in any way
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {error}); correct the module"
        ) from error


def raised_in(error: BaseException, files: Collection[Path]) -> str:
    """File and line of an error, as "mine.py, line 4": the innermost call in one of the files, or else of all."""
    frames = traceback.extract_tb(error.__traceback__)
    resolved = {str(file.resolve()) for file in files}
    frame = next((frame for frame in reversed(frames) if frame.filename in resolved), frames[-1])
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def names_object(setting: str) -> bool:
    """Whether a setting has the form FILE.py:NAME."""
    file, colon, name = setting.rpartition(":")
    return bool(colon) and file.endswith(".py") and name.isidentifier()


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
    module = ModuleType(f"rlhf_lab_user_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    # Compiled here, and no bytecode of neighbours stored: Python's own loader takes it for an edit in the same second.
    writes_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(path.read_bytes(), module.__file__, "exec"), vars(module))
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
    return module


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
