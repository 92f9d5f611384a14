"""Checksums of a completed stage: SHA256SUMS lists each file that a later stage or a report reads, with its digest.

The file is written just before result.json reports completion, and verified before the stage is used again. A file that
was modified in between is therefore never mistaken for the result. `sha256sum -c SHA256SUMS` in the run directory does
the same check in full.

Large files are hashed once. `.sealed` stores the size, modification time and inode of each when its digest was last
verified; a file that still has them counts as unchanged. Only `sha256sum -c` detects an edit that keeps the size and
restores the time.
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
"""Key of result.json: true if the stage was completed with checksums."""
PASSED = ".sealed"
"""File of the run directory: large file → [bytes, modification time in ns, inode] when its digest was verified.
This file is not checksummed itself."""
LARGE = 2**26
"""Minimum bytes of a file that is hashed only once; see `PASSED`."""
LONG = 2**30
"""Minimum bytes to hash for which `check` prints a message, because hashing them takes a while."""
TOP_SUFFIXES = {".json", ".jsonl", ".yaml"}
FOLDERS = ("model", "rounds")
"""Checksummed files: those with these suffixes in the run directory itself, and all files in these directories."""
UNFINISHED = {"running", "failed", "interrupted", "paused"}
"""Values of `status` in result.json of a stage that is not completed."""


def write(directory: Path, result: str) -> None:
    """Write the checksums of a stage whose result.json is about to contain the text `result`."""
    digests = {path.relative_to(directory).as_posix(): file_digest(path) for path in _checksummed_files(directory)}
    digests[RESULT] = sha256(result.encode()).hexdigest()
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    write_text(directory / NAME, "".join(lines))


def remove(directory: Path) -> None:
    """Remove the checksums. Call this before anything else in a checksummed stage is changed.

    result.json is deleted first: it declares that checksums exist, and without it the stage is not complete.
    """
    if _claims_checksummed(directory):
        (directory / RESULT).unlink()
    for name in (NAME, PASSED):
        (directory / name).unlink(missing_ok=True)


def check(directory: Path, *, rebuilt: bool, say: Callable[[str], None]) -> None:
    """Raise ArtifactError naming every missing or modified file of a checksummed stage.

    Also raise it if result.json declares checksums and SHA256SUMS is missing. Directories that rlhf_lab did not
    checksum have nothing to check.

    Args:
        rebuilt: True if the command itself rebuilds the stage when the directory is missing.
        say: function called with a message if there is 1 GiB or more to hash.
    """
    # Only a command that builds the stage itself can replace it; a stage named by path has to be restored.
    hint = f", or delete {directory} and give the same command again to build it anew" if rebuilt else ""
    if is_missing(directory):
        raise ArtifactError(
            f"{directory} is damaged. Its {NAME}, written at completion, is missing, so its files cannot be verified. "
            f"Restore it from a copy{hint}"
        )
    digests = _read_digests(directory)
    # Stats are taken before hashing: a file that is modified during the check then fails the comparison next time.
    large = {name: stat for name in digests if (stat := _file_stat(directory / name)) and stat[0] >= LARGE}
    unhashed = _without_passed(directory, digests)
    stats = [_file_stat(directory / name) for name in unhashed]
    size = sum(stat[0] for stat in stats if stat)
    if size >= LONG:
        say(f"checking {size / 2**30:.1f} GiB of {directory}")
    problems = list(_find_problems(directory, unhashed))
    if problems:
        raise ArtifactError(
            f"{directory} is damaged. Since it was completed, {'; '.join(problems)}; expected the contents that {NAME} "
            f"lists. Restore from a copy{hint}"
        )
    # Write `PASSED` only if a large file was hashed now, so that a check of known files leaves the disk untouched.
    if large.keys() & unhashed.keys():
        with suppress(OSError):  # on a read-only disk the files are hashed again each time
            write_json(directory / PASSED, large)


def is_missing(directory: Path) -> bool:
    """Return True if result.json of a completed stage declares checksums but SHA256SUMS is missing."""
    return not (directory / NAME).is_file() and _claims_checksummed(directory)


def _claims_checksummed(directory: Path) -> bool:
    result = read_json(directory / RESULT)
    return isinstance(result, dict) and result.get("status") == "completed" and result.get(SEALED) is True


def changed(directory: Path) -> list[str]:
    """Return the names of checksummed files for reports that are missing or modified; models are not checked."""
    if is_missing(directory):
        return [NAME]
    digests = {name: digest for name, digest in _read_digests(directory).items() if "/" not in name}
    unhashed = _without_passed(directory, digests)
    return [name for name, digest in unhashed.items() if any(_find_problems(directory, {name: digest}))]


def _read_digests(directory: Path) -> dict[str, str]:
    """Return name → digest of a completed stage; empty if rlhf_lab did not write SHA256SUMS (models may ship one)."""
    if not (directory / NAME).is_file():
        return {}
    result = read_json(directory / RESULT)
    if isinstance(result, dict) and result.get("status") in UNFINISHED:
        # The attempt stopped after writing the checksums and before the result; it will resume from its checkpoint.
        return {}
    digests: dict[str, str] = {}
    for line in (directory / NAME).read_text(encoding="utf-8", errors="replace").splitlines():
        # "digest  name", or "digest *name" where sha256sum read the file in binary mode
        digest, _, name = line.partition(" ")
        if name[:1] in (" ", "*"):
            name = name[1:]
        digests[name] = digest
    stage_files = {RESULT, MANIFEST}
    # A published model may have a SHA256SUMS of its own; only a stage also has a result and a manifest.
    is_stage = stage_files <= digests.keys() or all((directory / name).is_file() for name in stage_files)
    return digests if is_stage else {}


def _without_passed(directory: Path, digests: dict[str, str]) -> dict[str, str]:
    """Return the files to hash: all except large ones that passed before and have not changed since."""
    passed = read_json(directory / PASSED)
    passed_stats = passed if isinstance(passed, dict) else {}
    unhashed = {}
    for name, digest in digests.items():
        # The default 0 differs from every stat. A missing file has the stat None, and must be reported.
        if passed_stats.get(name, 0) != _file_stat(directory / name):
            unhashed[name] = digest
    return unhashed


def _find_problems(directory: Path, digests: dict[str, str]) -> Iterator[str]:
    for name, digest in digests.items():
        path = directory / name
        if not name or not path.is_file():
            yield f"{path} is missing"
        elif file_digest(path) != digest:
            yield f"{path} ({path.stat().st_size} bytes) has changed"


def _file_stat(path: Path) -> list[int] | None:
    """Return [bytes, modification time in ns, inode], or None for a missing file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]  # a list, because JSON turns tuples into lists


def _checksummed_files(directory: Path) -> Iterator[Path]:
    # result.json is excluded here: `write` adds the digest of the text that it is about to contain
    top = (path for path in directory.iterdir() if path.suffix in TOP_SUFFIXES and path.name != RESULT)
    below = (path for name in FOLDERS for path in (directory / name).rglob("*"))
    for path in (*top, *below):
        if path.is_file() and not path.name.startswith("."):
            yield path
