"""What a completed stage promises: SHA256SUMS lists every file that a later stage or a report reads, with its digest.

It is written just before result.json says completed, and checked before the stage is used again, so that a file which
changed since is never mistaken for the result. `sha256sum -c SHA256SUMS` in the folder does the same check.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from rlhf_lab.errors import ArtifactError
from rlhf_lab.files import file_digest, read_json, write_text

NAME = "SHA256SUMS"
RESULT = "result.json"
TOP, FOLDERS = {".json", ".jsonl", ".yaml"}, ("model", "rounds")
UNFINISHED = {"running", "failed", "interrupted"}


def write(folder: Path, result: str) -> None:
    """Seal a stage whose result.json is about to hold the text `result`."""
    sums = {path.relative_to(folder).as_posix(): file_digest(path) for path in _files(folder)}
    sums[RESULT] = sha256(result.encode()).hexdigest()
    write_text(folder / NAME, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def remove(folder: Path) -> None:
    """Before anything else of a sealed stage is changed."""
    (folder / NAME).unlink(missing_ok=True)


def check(folder: Path) -> None:
    """Raises ArtifactError naming every file of a sealed stage that is missing or was changed; without a seal, none."""
    result = read_json(folder / RESULT)
    if not (folder / NAME).exists() or (isinstance(result, dict) and result.get("status") in UNFINISHED):
        return  # an attempt that ended between the seal and the result goes on from its checkpoint
    problems = []
    for line in (folder / NAME).read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        path = folder / name
        if not name or not path.is_file():
            problems.append(f"{path} is missing")
        elif file_digest(path) != digest:
            problems.append(f"{path} ({path.stat().st_size} bytes) has changed")
    if not problems:
        return
    raise ArtifactError(
        f"{folder} is damaged. Since it was completed, {'; '.join(problems)}; expected the contents that {NAME} lists. "
        f"Restore from a copy, or delete {folder} and give the same command again to build it anew"
    )


def _files(folder: Path) -> Iterator[Path]:
    top = (path for path in folder.iterdir() if path.suffix in TOP and path.name != RESULT)
    for path in (*top, *(path for name in FOLDERS for path in (folder / name).rglob("*"))):
        if path.is_file() and not path.name.startswith("."):
            yield path
