"""The answer of a run, kept beside its report: a recipe that is wholly in the store answers without loading pandas."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from rlhf_lab.core.files import read_json, write_json

NAME = "answer.json"
WRITERS = ("results", "studies", "figures", "reports", "statistics", "monitoring")
"""Packages of the lab that decide what a report says."""


def remember(folder: Path, sentence: str, caveat: str) -> None:
    """Keep the answer of a run whose report has just been written."""
    write_json(folder / NAME, {"sentence": sentence, "caveat": caveat, "made_from": _inputs_digest(folder)})


def recall(folder: Path) -> tuple[str, str] | None:
    """(sentence, caveat) of a report that is there; None where the result or the code of reports is another one now."""
    stored = read_json(folder / NAME)
    current = isinstance(stored, dict) and stored.get("made_from") == _inputs_digest(folder)
    if not current or not (folder / "report.html").is_file():
        return None
    return stored["sentence"], stored["caveat"]


def _inputs_digest(folder: Path) -> str:
    """Digest of the result and of everything that writes reports."""
    digest = sha256((folder / "result.json").read_bytes())
    package = Path(__file__).resolve().parents[1]
    for name in WRITERS:
        for file in sorted((package / name).rglob("*.*")):
            if file.suffix in (".py", ".j2", ".js"):
                digest.update(file.read_bytes())
    return digest.hexdigest()
