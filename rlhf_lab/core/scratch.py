"""Temporary directory of a process that is removed even if the process is killed.

A process locks a file in its directory; the system releases the lock however the process ends. The next run, or the
next process that needs such a directory, removes all directories that are not locked. A process id alone would not
work: another process may get the same id, and it means nothing in another container that shares the parent directory.
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
"""Prefix of a directory that is locked as long as its process runs."""
UNLOCKED = "rlhf_lab-new-"
"""Prefix of a directory that is still being created. No other process touches it."""
OWNER = ".owner"
"""File that the owner locks. It contains the owner's host name and process id."""

_dirs: dict[Path, tuple[Path, IO[str]]] = {}
"""Parent directory → (this process's directory inside it, open file that holds the lock)."""


def scratch_dir(parent: Path | None = None) -> Path:
    """Return the temporary directory of this process. Forked processes share it.

    Args:
        parent: directory in which it is created; None is the system's temporary directory.
    """
    parent = parent or Path(tempfile.gettempdir())
    path, _ = _dirs.get(parent, (None, None))
    if path is None or not path.is_dir():  # a machine may delete old temporary files during a long run
        remove_abandoned(parent)
        path, owner = _make(parent)
        _dirs[parent] = path, owner
        atexit.register(_remove_at_exit, path, os.getpid())
    return path


def _make(parent: Path) -> tuple[Path, IO[str]]:
    # A directory is created under another name, locked, and only then renamed.
    unlocked = Path(tempfile.mkdtemp(prefix=UNLOCKED, dir=parent))
    owner = (unlocked / OWNER).open("w", encoding="utf-8")
    owner.write(f"{socket.gethostname()} {os.getpid()}\n")
    owner.flush()
    with suppress(OSError):  # on a file system without locks no process can lock the file, so nobody removes it
        fcntl.flock(owner, fcntl.LOCK_EX)
    path = parent / unlocked.name.replace(UNLOCKED, PREFIX)
    unlocked.rename(path)  # rename only after locking: other processes remove an unlocked directory of this name
    return path, owner


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the directories of processes that exited without doing so; `parent` as in `scratch_dir`."""
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        try:
            with (path / OWNER).open("r+", encoding="utf-8") as owner:
                host = owner.read().partition(" ")[0]
                # On a shared file system the lock of another machine may not be visible.
                if host != socket.gethostname():
                    continue
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # its process is running, it belongs to another user, or another process is removing it
            continue


def _remove_at_exit(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process must not remove the directory of its parent when it exits
        shutil.rmtree(path, ignore_errors=True)
