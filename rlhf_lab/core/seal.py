"""The seal of a completed stage: SHA256SUMS lists every file that a later stage or a report reads, with its digest.

It is written just before result.json says completed, and checked before the stage is used again, so that a file which
has changed since is never mistaken for the result. `sha256sum -c SHA256SUMS` in the folder does the same check in full.

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
SEALED = "sealed"
"""Entry of result.json: true of a stage that was completed with a seal."""
PASSED = ".sealed"
"""File of the run directory: large file → [bytes, modified in ns, inode] with which it passed. Not sealed itself."""
LARGE = 2**26
"""Bytes: a file of this size or more is hashed only once, see `PASSED`."""
LONG = 2**30
"""Bytes: hashing as much or more is announced, because it takes a while."""
TOP_SUFFIXES = {".json", ".jsonl", ".yaml"}
FOLDERS = ("model", "rounds")
"""What is sealed: files of these suffixes in the run directory itself, and everything in these folders."""
UNFINISHED = {"running", "failed", "interrupted", "paused"}


def write(folder: Path, result: str) -> None:
    """Seal a stage whose result.json is about to hold the text `result`."""
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in _sealed_files(folder)}
    digests[RESULT] = sha256(result.encode()).hexdigest()
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    write_text(folder / NAME, "".join(lines))


def remove(folder: Path) -> None:
    """Remove the seal. To be called before anything else of a sealed stage is changed.

    The result goes first: it says that there is a seal, and without the result the stage is not complete.
    """
    if _says_sealed(folder):
        (folder / RESULT).unlink()
    for name in (NAME, PASSED):
        (folder / name).unlink(missing_ok=True)


def check(folder: Path, *, rebuilt: bool, say: Callable[[str], None]) -> None:
    """Raises ArtifactError naming every file of a sealed stage that is missing or was changed, or the seal where the
    result says that there was one; of folders without a seal of the lab, none.

    Args:
        rebuilt: whether the command builds the stage itself where it is not there.
        say: called with a message when there is 1 GiB or more to hash.
    """
    advice = f", or delete {folder} and give the same command again to build it anew" if rebuilt else ""
    if is_missing(folder):
        raise ArtifactError(
            f"{folder} is damaged. Its {NAME} is missing, with which it was completed, so nothing says that its files "
            f"are what they were. Restore from a copy{advice}"
        )
    digests = _read_digests(folder)
    large = {name: stat for name in digests if (stat := _file_stat(folder / name)) and stat[0] >= LARGE}
    unhashed = _without_passed(folder, digests)
    size = sum(stat[0] for name in unhashed if (stat := _file_stat(folder / name)))
    if size >= LONG:
        say(f"checking {size / 2**30:.1f} GiB of {folder}")
    problems = list(_find_problems(folder, unhashed))
    if problems:
        raise ArtifactError(
            f"{folder} is damaged. Since it was completed, {'; '.join(problems)}; expected the contents that {NAME} "
            f"lists. Restore from a copy{advice}"
        )
    if large.keys() & unhashed.keys():
        with suppress(OSError):  # on a read-only disk they are hashed again
            write_json(folder / PASSED, large)


def is_missing(folder: Path) -> bool:
    """Whether a completed stage was sealed and the seal is gone."""
    return not (folder / NAME).is_file() and _says_sealed(folder)


def _says_sealed(folder: Path) -> bool:
    result = read_json(folder / RESULT)
    return isinstance(result, dict) and result.get("status") == "completed" and result.get(SEALED) is True


def changed(folder: Path) -> list[str]:
    """Names of sealed files that a report reads and that are missing or were changed; models are left out."""
    if is_missing(folder):
        return [NAME]
    digests = {name: digest for name, digest in _read_digests(folder).items() if "/" not in name}
    unhashed = _without_passed(folder, digests)
    return [name for name, digest in unhashed.items() if any(_find_problems(folder, {name: digest}))]


def _read_digests(folder: Path) -> dict[str, str]:
    """Name → digest of a completed stage; empty without a seal of the lab (others publish models with a SHA256SUMS)."""
    if not (folder / NAME).is_file():
        return {}
    result = read_json(folder / RESULT)
    if isinstance(result, dict) and result.get("status") in UNFINISHED:
        return {}  # an attempt that ended between the seal and the result goes on from its checkpoint
    digests: dict[str, str] = {}
    for line in (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines():
        # "digest  name", or "digest *name" where sha256sum read the file in binary mode
        digest, _, name = line.partition(" ")
        if name[:1] in (" ", "*"):
            name = name[1:]
        digests[name] = digest
    stage_files = {RESULT, MANIFEST}
    is_stage = stage_files <= digests.keys() or all((folder / name).is_file() for name in stage_files)
    return digests if is_stage else {}


def _without_passed(folder: Path, digests: dict[str, str]) -> dict[str, str]:
    """The files that have to be hashed: all but large ones that passed before and are unchanged since."""
    passed = read_json(folder / PASSED)
    passed_stats = passed if isinstance(passed, dict) else {}
    # 0 for a file that has not passed: a missing one has the stat None, and must be reported
    return {name: digest for name, digest in digests.items() if passed_stats.get(name, 0) != _file_stat(folder / name)}


def _find_problems(folder: Path, digests: dict[str, str]) -> Iterator[str]:
    for name, digest in digests.items():
        path = folder / name
        if not name or not path.is_file():
            yield f"{path} is missing"
        elif file_digest(path) != digest:
            yield f"{path} ({path.stat().st_size} bytes) has changed"


def _file_stat(path: Path) -> list[int] | None:
    """[bytes, modified in ns, inode]; None for a missing file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]  # a list, as JSON gives it back


def _sealed_files(folder: Path) -> Iterator[Path]:
    # not result.json, whose digest is that of the text it is about to hold
    top = (path for path in folder.iterdir() if path.suffix in TOP_SUFFIXES and path.name != RESULT)
    below = (path for name in FOLDERS for path in (folder / name).rglob("*"))
    for path in (*top, *below):
        if path.is_file() and not path.name.startswith("."):
            yield path
