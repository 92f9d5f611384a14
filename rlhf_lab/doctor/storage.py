"""Checks of the file system of outputs and downloads: space, permissions, atomic renames and locks.

Everything is tried in a temporary directory, which is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from rlhf_lab.core.files import read_json, replacing, short_path, write_json
from rlhf_lab.core.machine import GIB
from rlhf_lab.doctor.environment import ENOUGH_GIB
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail

MOUNTS = Path("/proc/mounts")
SECOND_PROCESS = """
import sys
from filelock import FileLock, Timeout
try:
    FileLock(sys.argv[1]).acquire(timeout=0)
except Timeout:
    sys.exit(3)
"""
REFUSED = 3  # exit status of SECOND_PROCESS if another process holds the lock


def existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent, which is on the same file system."""
    directory = directory.absolute()
    return next(path for path in (directory, *directory.parents) if path.is_dir())


@contextmanager
def temporary_directory(outputs: Path) -> Iterator[Path]:
    """Create a temporary directory on the file system of `outputs`; remove it at the end. Raise OSError on failure."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing(outputs), ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def disk(outputs: Path) -> CheckResult:
    free = shutil.disk_usage(existing(outputs)).free
    hint = "free space, or store results elsewhere: outputs=DIR"
    where = f"{free / GIB:.1f} GiB free in {redacted_path(outputs)} ({file_system(outputs)})"
    return pass_or_fail(free >= ENOUGH_GIB * GIB, where, f"≥ {ENOUGH_GIB:g} GiB", hint)


def redacted_path(path: Path) -> str:
    """Return a path without private parts: relative to the working directory, or with the home directory as "~"."""
    path = short_path(path.absolute())
    if not path.is_absolute():
        return str(path)
    home = Path.home()
    in_home = path.is_relative_to(home) and home != Path(home.anchor)
    return f"~/{path.relative_to(home)}" if in_home else str(path)


def file_system(directory: Path) -> str:
    """Return the type of the file system of a directory, e.g. ext4 or nfs4."""
    location = existing(directory).resolve()
    unknown = "unknown file system"
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return unknown
    mounts = [line.split()[1:3] for line in lines]
    # Of the mount points that contain the directory, the one with the longest path holds it.
    holding = [(len(mount), kind) for mount, kind in mounts if location.is_relative_to(mount)]
    return max(holding, default=(0, unknown), key=lambda entry: entry[0])[1]


def atomic_rename(outputs: Path) -> CheckResult:
    """Check that files and directories can be written, and replaced in one move."""
    hint = f"results cannot be written to {redacted_path(outputs)}: check its owner and mount, or use outputs=DIR"
    try:
        with temporary_directory(outputs) as directory:
            file = directory / "file.json"
            # The second round replaces the files of the first.
            for value in (1, 2):
                write_json(file, value)
                with replacing(directory / "model") as new_dir:
                    new_dir.mkdir()
                    write_json(new_dir / "weights", value)
            names = sorted(path.name for path in directory.iterdir())
            both_new = read_json(file) == 2 and read_json(directory / "model" / "weights") == 2
            holds = both_new and names == ["file.json", "model"]  # no temporary file is left
            return pass_or_fail(holds, "a file and a directory replaced", "both new", hint)
    except OSError as error:
        return pass_or_fail(False, f"{type(error).__name__}: {error}", "both new", hint)


def locks(outputs: Path) -> CheckResult:
    """Check that a second process is refused while the first holds a lock, and admitted afterwards."""
    hint = "two runs could build one stage at the same time: mount with locks (NFS: 4.x, not nolock), or outputs=DIR"
    with temporary_directory(outputs) as directory:
        path = directory / "stage.lock"
        with FileLock(path):
            during = _try_lock(path)
        after = _try_lock(path)
    words = {REFUSED: "refused", 0: "admitted"}
    measured = (
        f"a second process is {words.get(during, 'in error')} while it is locked, {words.get(after, 'in error')} after"
    )
    return pass_or_fail((during, after) == (REFUSED, 0), measured, "refused, admitted", hint)


def _try_lock(path: Path) -> int:
    """Return the exit status of a second process that tries to take the lock."""
    command = [sys.executable, "-c", SECOND_PROCESS, str(path)]
    return subprocess.run(command, capture_output=True, timeout=60).returncode


def hub_cache(_: Path) -> CheckResult:
    """Check where Hugging Face stores downloads, and whether it may download."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    offline = constants.HF_HUB_OFFLINE
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    mode = "offline: only stored models and local directories" if offline else "online: a missing hub id is downloaded"
    hint = "downloads cannot be stored; set HF_HOME to a writable directory"
    writable = offline or os.access(existing(cache), os.W_OK)
    return pass_or_fail(writable, f"{redacted_path(cache)}, {models} models; {mode}", "writable", hint)


STORAGE = [
    DoctorCheck("disk", disk),
    DoctorCheck("atomic writes", atomic_rename),
    DoctorCheck("file locks", locks),
    DoctorCheck("model hub", hub_cache),
]
