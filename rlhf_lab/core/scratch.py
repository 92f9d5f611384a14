"""The directory of a process for temporary files, which does not stay behind even where the process is killed.

A process holds a lock on a file in its directory, which the system releases however the process ends. The next run, and
the next process that needs such a directory, remove those whose lock nobody holds. A process id alone would not do:
another process may get the same one, and it means nothing in another container with the same directory for temporary
files.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PREFIX = "rlhf_lab-scratch-"
UNLOCKED = "rlhf_lab-new-"
"""Prefix of a directory that is being made, which no other process touches."""
OWNER = ".owner"
"""File that the owner locks; its text is the owner's host and process id."""

_dirs: dict[Path, tuple[Path, IO[str]]] = {}
"""Parent directory → this process's directory below it, and the open file that holds the lock."""


def scratch_dir(parent: Path | None = None) -> Path:
    """The directory of this process for temporary files. Processes that it forks share it.

    Args:
        parent: where it is made; None is the system's directory for temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    path, _ = _dirs.get(parent, (None, None))
    if path is None or not path.is_dir():  # a machine may clear old temporary files under a long run
        remove_abandoned(parent)
        path, owner = _make(parent)
        _dirs[parent] = path, owner
        atexit.register(_remove_at_exit, path, os.getpid())
    return path


def _make(parent: Path) -> tuple[Path, IO[str]]:
    unlocked = Path(tempfile.mkdtemp(prefix=UNLOCKED, dir=parent))
    owner = (unlocked / OWNER).open("w", encoding="utf-8")
    owner.write(f"{socket.gethostname()} {os.getpid()}\n")
    owner.flush()
    with suppress(OSError):  # a drive without locks: nobody can lock the file there, so nobody removes the directory
        fcntl.flock(owner, fcntl.LOCK_EX)
    path = parent / unlocked.name.replace(UNLOCKED, PREFIX)
    unlocked.rename(path)  # only now: a directory of this name that is not locked is removed
    return path, owner


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the directories whose processes have ended without doing so; `parent` as of `scratch_dir`."""
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        try:
            with (path / OWNER).open("r+", encoding="utf-8") as owner:
                host = owner.read().partition(" ")[0]
                if host != socket.gethostname():  # on a shared drive, a lock of another machine may not show here
                    continue
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its process is alive, it belongs to another user, or another process is removing it
            continue


def _remove_at_exit(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process may end before the one that shares the directory with it
        shutil.rmtree(path, ignore_errors=True)
