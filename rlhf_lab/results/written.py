"""Cache of a run's answer next to its report, so that a stored result is shown without loading pandas."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from rlhf_lab.core.files import read_json, write_json

NAME = "answer.json"
WRITERS = ("results", "studies", "figures", "reports", "statistics", "monitoring")
"""Packages of rlhf_lab whose code determines the content of a report."""


def remember(directory: Path, sentence: str, caveat: str) -> None:
    """Store the answer of a run whose report has just been written."""
    write_json(directory / NAME, {"sentence": sentence, "caveat": caveat, "made_from": _inputs_digest(directory)})


def recall(directory: Path) -> tuple[str, str] | None:
    """Return the stored (sentence, caveat) of a report; None if the result or the code of reports has changed."""
    stored = read_json(directory / NAME)
    current = isinstance(stored, dict) and stored.get("made_from") == _inputs_digest(directory)
    if not current or not (directory / "report.html").is_file():
        return None
    return stored["sentence"], stored["caveat"]


def _inputs_digest(directory: Path) -> str:
    """Return a digest of the result and of all code that writes reports."""
    digest = sha256((directory / "result.json").read_bytes())
    package = Path(__file__).resolve().parents[1]
    for name in WRITERS:
        for file in sorted((package / name).rglob("*.*")):
            if file.suffix in (".py", ".j2", ".js"):
                digest.update(file.read_bytes())
    return digest.hexdigest()
