"""Where results and downloads go: space, permissions, atomic renames and locks on the file system of outputs.

Everything is tried in a temporary folder, which is removed.
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

from rlhf_lab.core.files import read_json, replacing, write_json
from rlhf_lab.doctor.environment import ENOUGH_GIB
from rlhf_lab.doctor.findings import Check, Finding, pass_or_fail
from rlhf_lab.memory.devices import GIB

MOUNTS = Path("/proc/mounts")
SECOND_PROCESS = """
import sys
from filelock import FileLock, Timeout
try:
    FileLock(sys.argv[1]).acquire(timeout=0)
except Timeout:
    sys.exit(3)
"""
REFUSED = 3  # exit status of SECOND_PROCESS when the lock is held


def existing(folder: Path) -> Path:
    """The folder, or the nearest existing one above it, which is on the same file system."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


@contextmanager
def scratch(outputs: Path) -> Iterator[Path]:
    """A temporary folder on the file system of `outputs`, removed at the end. Raises OSError where none can be made."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=existing(outputs), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def disk(outputs: Path) -> Finding:
    free = shutil.disk_usage(existing(outputs)).free
    advice = "free space, or put results elsewhere: outputs=FOLDER"
    where = f"{free / GIB:.1f} GiB free in {shown(outputs)} ({file_system(outputs)})"
    return pass_or_fail(free >= ENOUGH_GIB * GIB, where, f"≥ {ENOUGH_GIB:g} GiB", advice)


def shown(path: Path) -> str:
    """A path as a bug report may show it: relative to the working directory, or the home directory as "~"."""
    path = path.absolute()
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    home = Path.home()
    in_home = path.is_relative_to(home) and home != Path(home.anchor)
    return f"~/{path.relative_to(home)}" if in_home else str(path)


def file_system(folder: Path) -> str:
    """Type of the file system that holds a folder, e.g. ext4 or nfs4."""
    location = existing(folder).resolve()
    kind = "unknown file system"
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return kind
    longest = -1  # of the mount points above the folder, the longest is the one that holds it
    for line in lines:
        mount, mount_kind = line.split()[1:3]
        if location.is_relative_to(mount) and len(mount) > longest:
            longest = len(mount)
            kind = mount_kind
    return kind


def atomic_rename(outputs: Path) -> Finding:
    """Whether results can be written and replaced in one move, files and folders."""
    advice = f"results cannot be written to {shown(outputs)}: check its owner and mount, or use outputs=FOLDER"
    try:
        with scratch(outputs) as folder:
            file = folder / "file.json"
            for value in (1, 2):
                write_json(file, value)
                with replacing(folder / "model") as new_folder:
                    new_folder.mkdir()
                    write_json(new_folder / "weights", value)
            names = sorted(path.name for path in folder.iterdir())
            both_new = read_json(file) == 2 and read_json(folder / "model" / "weights") == 2
            holds = both_new and names == ["file.json", "model"]  # nothing temporary is left
            return pass_or_fail(holds, "a file and a folder replaced", "both new", advice)
    except OSError as error:
        return pass_or_fail(False, f"{type(error).__name__}: {error}", "both new", advice)


def locks(outputs: Path) -> Finding:
    """Whether a second process is kept out while the first holds a lock, and let in afterwards."""
    advice = (
        "two runs could build one stage at the same time: mount with locks (NFS: 4.x, not nolock), or outputs=FOLDER"
    )
    with scratch(outputs) as folder:
        path = folder / "stage.lock"
        with FileLock(path):
            during = _try_lock(path)
        after = _try_lock(path)
    words = {REFUSED: "kept out", 0: "let in"}
    measured = (
        f"a second process is {words.get(during, 'in error')} while it is held, {words.get(after, 'in error')} after"
    )
    return pass_or_fail((during, after) == (REFUSED, 0), measured, "kept out, let in", advice)


def _try_lock(path: Path) -> int:
    """Exit status of a second process that tries to take the lock."""
    command = [sys.executable, "-c", SECOND_PROCESS, str(path)]
    return subprocess.run(command, capture_output=True, timeout=60).returncode


def hub_cache(_: Path) -> Finding:
    """Where Hugging Face keeps downloads, and whether it may make any."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    offline = constants.HF_HUB_OFFLINE
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    mode = "offline: only what is there or in folders" if offline else "online: a hub id that is missing is downloaded"
    advice = "downloads cannot be kept; set HF_HOME to a folder that can be written"
    writable = offline or os.access(existing(cache), os.W_OK)
    return pass_or_fail(writable, f"{shown(cache)}, {models} models; {mode}", "writable", advice)


STORAGE = [
    Check("disk", disk),
    Check("atomic writes", atomic_rename),
    Check("file locks", locks),
    Check("model hub", hub_cache),
]
