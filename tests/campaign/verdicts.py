"""Checks that a store holds what an uninterrupted run leaves, and that a refusal says what a person needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from rlhf_lab.core import checksums as seal

TIMES = {"seconds", "cpu_seconds", "time", "peak_gib"}
"""Measured, so different in every run."""
FAILED = re.compile(r"^(job \d+ )?failed: |^  • ")
"""A line that refuses: of a run that failed, or one of the problems that were seen before anything was run."""
FILE = re.compile(r"outputs\b")
REMEDY = re.compile(r"free space|raise the|make it writable|permission to write|check the disk|[Rr]estore|delete ")
REASON = re.compile(
    r"No space left|File too large|Read-only file system|Operation not permitted|Permission denied|damaged|is gone"
)


def differences(expected: Path, found: Path) -> list[str]:
    """Return the differences between two directories of one stage: tensors, results, logs, rounds."""
    problems = []
    for name in ("result.json", "metrics.jsonl", "evaluation.jsonl", "policies.jsonl", "monitor.jsonl"):
        one, other = expected / name, found / name
        if one.exists() != other.exists():
            problems.append(f"{name} is {'missing' if one.exists() else 'too many'}")
        elif one.exists() and _values(one) != _values(other):
            problems.append(f"{name} differs")
    for path in (
        p for directory in ("model", "rounds") for p in sorted((expected / directory).rglob("*")) if p.is_file()
    ):
        other = found / path.relative_to(expected)
        if not other.is_file() or not _same(path, other):
            problems.append(f"{path.relative_to(expected)} differs")
    return [f"{found.name}: {problem}" for problem in problems]


def _values(path: Path) -> Any:
    """Return the contents of a result or a log without times and notes."""
    if path.suffix == ".json":
        result = json.loads(path.read_text())
        return _timeless({key: result.get(key) for key in ("status", "error", "policies", "metrics", "primary")})
    return [_timeless(json.loads(line)) for line in path.read_text().split("\n")[:-1]]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def _same(one: Path, other: Path) -> bool:
    """Byte by byte but for the working directory, which an adapter names; tensors bit by bit."""
    if one.suffix != ".safetensors":
        return _placeless(one) == _placeless(other)
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a)


def _placeless(path: Path) -> bytes:
    return path.read_bytes().replace(str(path)[: str(path).index("/outputs/")].encode(), b"")


def leftovers(outputs: Path) -> list[str]:
    """Half-written files, and checkpoints of stages that are complete."""
    found = [f"{path} is left over" for path in outputs.rglob("*.part")]
    for result in outputs.glob("runs/*/result.json"):
        found += [f"{path} is left over" for path in result.parent.glob("checkpoint*")]
    return found


def half_written(outputs: Path) -> list[str]:
    """Files of results that are not whole, after an interruption that damaged nothing."""
    found = []
    for path in [*outputs.glob("runs/*/*.json"), *outputs.glob("studies/*/study.json")]:
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(f"{path} is half-written")
    for directory in outputs.glob("runs/*"):
        try:
            seal.check(directory, rebuilt=False, say=print)
        except Exception as error:
            found.append(str(error))
    return found


def unexplained(text: str, status: int) -> str | None:
    """Return what a refusal lacks: an exit status of 1 or 2, the file, the reason and the remedy, and no traceback."""
    lacks = []
    if status not in (1, 2):
        lacks.append(f"exit status {status}")
    if "Traceback" in text:
        lacks.append("a traceback")
    output_text = [line for line in text.splitlines() if FAILED.search(line)]
    if not output_text or not all(
        FILE.search(line) and REASON.search(line) and REMEDY.search(line) for line in output_text
    ):
        lacks.append("no line with file, reason and remedy")
    return ", ".join(lacks) or None
