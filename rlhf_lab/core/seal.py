"""What a completed stage promises: SHA256SUMS lists every file that a later stage or a report reads, with its digest.

It is written just before result.json says completed, and checked before the stage is used again, so that a file which
changed since is never mistaken for the result. `sha256sum -c SHA256SUMS` in the folder does the same check in full.

Large files are hashed once: `.sealed` keeps the size, time and inode with which they passed, and one that still has
them is taken as unchanged. An edit that keeps the size and puts the time back is seen by `sha256sum -c` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, read_json, write_json, write_text

NAME = "SHA256SUMS"
RESULT, MANIFEST = "result.json", "manifest.json"
PASSED = ".sealed"
"""File of the run directory: large file → [bytes, modified in ns, inode] with which it passed. Not sealed itself."""
LARGE, LONG = 2**26, 2**30
"""Bytes of a file from which on it is hashed once; bytes to hash from which on it is announced."""
TOP, FOLDERS = {".json", ".jsonl", ".yaml"}, ("model", "rounds")
UNFINISHED = {"running", "failed", "interrupted"}


def write(folder: Path, result: str) -> None:
    """Seal a stage whose result.json is about to hold the text `result`."""
    sums = {path.relative_to(folder).as_posix(): file_digest(path) for path in _files(folder)}
    sums[RESULT] = sha256(result.encode()).hexdigest()
    write_text(folder / NAME, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def remove(folder: Path) -> None:
    """Before anything else of a sealed stage is changed."""
    for name in (NAME, PASSED):
        (folder / name).unlink(missing_ok=True)


def check(folder: Path, *, rebuilt: bool, say: Callable[[str], None]) -> None:
    """Raises ArtifactError naming every file of a sealed stage that is missing or was changed; without a seal, none.

    Args:
        rebuilt: whether the command builds the stage itself where it is not there.
        say: told when there is more than 1 GiB to hash.
    """
    sums = _sums(folder)
    large = {name: stat for name in sums if (stat := _stat(folder / name)) and stat[0] >= LARGE}
    unread = _unread(folder, sums)
    size = sum(stat[0] for name in unread if (stat := _stat(folder / name)))
    if size >= LONG:
        say(f"checking {size / 2**30:.1f} GiB of {folder}")
    problems = list(_problems(folder, unread))
    if problems:
        advice = f", or delete {folder} and give the same command again to build it anew" if rebuilt else ""
        raise ArtifactError(
            f"{folder} is damaged. Since it was completed, {'; '.join(problems)}; expected the contents that {NAME} "
            f"lists. Restore from a copy{advice}"
        )
    if large.keys() & unread.keys():
        with suppress(OSError):  # on a read-only disk they are hashed again
            write_json(folder / PASSED, large)


def changed(folder: Path) -> list[str]:
    """Names of sealed files that a report reads and that are missing or were changed; models are left out."""
    sums = {name: digest for name, digest in _sums(folder).items() if "/" not in name}
    return [name for name, digest in _unread(folder, sums).items() if any(_problems(folder, {name: digest}))]


def _sums(folder: Path) -> dict[str, str]:
    """Name → digest of a completed stage; empty without a seal of the lab (others publish models with a SHA256SUMS)."""
    if not (folder / NAME).is_file():
        return {}
    result = read_json(folder / RESULT)
    if isinstance(result, dict) and result.get("status") in UNFINISHED:
        return {}  # an attempt that ended between the seal and the result goes on from its checkpoint
    lines = (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    parts = (line.partition(" ") for line in lines)
    sums = {rest[1:] if rest[:1] in (" ", "*") else rest: digest for digest, _, rest in parts}
    stage = {RESULT, MANIFEST}
    return sums if stage <= sums.keys() or all((folder / name).is_file() for name in stage) else {}


def _unread(folder: Path, sums: dict[str, str]) -> dict[str, str]:
    """Those of the files that are to be hashed: all but large ones that have passed and are as they were."""
    passed = read_json(folder / PASSED)
    known = passed if isinstance(passed, dict) else {}
    return {name: digest for name, digest in sums.items() if known.get(name, 0) != _stat(folder / name)}


def _problems(folder: Path, sums: dict[str, str]) -> Iterator[str]:
    for name, digest in sums.items():
        path = folder / name
        if not name or not path.is_file():
            yield f"{path} is missing"
        elif file_digest(path) != digest:
            yield f"{path} ({path.stat().st_size} bytes) has changed"


def _stat(path: Path) -> list[int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _files(folder: Path) -> Iterator[Path]:
    top = (path for path in folder.iterdir() if path.suffix in TOP and path.name != RESULT)
    for path in (*top, *(path for name in FOLDERS for path in (folder / name).rglob("*"))):
        if path.is_file() and not path.name.startswith("."):
            yield path
