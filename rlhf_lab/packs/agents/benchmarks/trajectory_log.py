"""Trajectories on disk, identified by the content of their attempts: trajectories.jsonl, one row per attempt.

A row is written at once when its attempt finishes, and has a checksum. A process that is killed between two rows loses
nothing; one that is killed within a row loses that attempt. A row that was damaged later is dropped and its attempt is
repeated. Runs of the same stage with the same code reuse each other's attempts, e.g. if a run has more tasks or draws
than an earlier one.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import append_jsonl, fingerprint, json_lines, parse_json, read_json, write_text
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

FILE = "trajectories.jsonl"
CODE = "code.json"
"""File of a run directory with the digests of the code that ran it."""
HIDDEN = "[secret]"
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Pattern of environment variables whose values are never written."""
SHORTEST_SECRET = 8
"""Minimum number of characters of a secret. Shorter values would occur in ordinary text by chance."""
SECRET_FORMS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bAKIA[A-Z0-9]{12,}"
    r"|\b[Bb]earer [A-Za-z0-9_\-.=+/]{16,}"
)
"""Patterns of API keys of well-known services. Such keys are removed even if no environment variable has them."""


class TrajectoryLog:
    """The stored attempts of a run.

    Attributes:
        path: the file.
        damaged: number of rows that were dropped because their checksum is wrong.
        adopted: number of attempts copied from earlier runs.
    """

    def __init__(self, directory: Path):
        self.path = directory / FILE
        self._secrets = secrets_of(os.environ)
        self._lock = threading.Lock()
        rows = list(_intact(self.path))
        self._rows = {row["key"]: row for row in rows if row is not None}
        self.damaged = sum(row is None for row in rows)
        self.adopted = 0
        # Rewritten without damaged rows, because an incomplete last row would merge with the next appended one.
        if self.damaged or len(self._rows) < len(rows):
            self._rewrite()

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def trajectory(self, key: str) -> AgentTrajectory:
        return from_json(self._rows[key]["trajectory"])

    def add(self, key: str, about: Mapping[str, Any], trajectory: AgentTrajectory) -> None:
        """Store an attempt. Secrets of the environment, and texts that look like secrets, are removed.

        Args:
            key: key of the attempt.
            about: further columns of the row.
            trajectory: trajectory of the attempt.
        """
        row = {"key": key, **about, "trajectory": asdict(trajectory)}
        # The checksum is computed from the values as they are read back, e.g. with lists instead of tuples.
        redacted = without_secrets(parse_json(json.dumps(row, default=str)), self._secrets)
        self._append([{**redacted, "sha256": fingerprint(redacted)}])

    def adopt(self, keys: Iterable[str], folders: Iterable[Path]) -> None:
        """Copy missing attempts with these keys from runs in other directories with the same code."""
        missing = {key for key in keys if key not in self}
        code = read_json(self.path.parent / CODE)
        if code is None:  # without it, nothing shows that other attempts were made by the same code
            return
        for directory in folders:
            if not missing:
                return
            if not _same_code(code, read_json(directory / CODE)):
                continue
            rows = {row["key"]: row for row in read_trajectories(directory) if row["key"] in missing}
            self._append(list(rows.values()))
            self.adopted += len(rows)
            missing -= rows.keys()

    def keep_only(self, keys: Iterable[str]) -> None:
        """Drop attempts that no longer belong to the run, and sort the others in the order of the keys."""
        expected = {key: self._rows[key] for key in keys}
        if list(expected) != list(self._rows):
            self._rows = expected
            self._rewrite()

    def _rewrite(self) -> None:
        write_text(self.path, json_lines(self._rows.values()))

    def _append(self, rows: list[dict[str, Any]]) -> None:
        with self._lock:  # agents that call a service may finish attempts in several threads
            fresh = [row for row in rows if row["key"] not in self._rows]
            if fresh:
                append_jsonl(self.path, fresh)
            self._rows |= {row["key"]: row for row in fresh}


def _same_code(mine: Mapping[str, Any], theirs: Any) -> bool:
    """Return True if every code definition that both runs record is the same in both. Each run may record further
    definitions, e.g. for other agents or data; these are not compared.
    """
    if not isinstance(theirs, dict) or mine.get("version") != theirs.get("version"):
        return False
    definitions, others = mine.get("definitions", {}), theirs.get("definitions", {})
    # A definition that the other run lacks counts as equal.
    return all(others.get(name, digest) == digest for name, digest in definitions.items())


def _intact(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a log in order; None for a row that is incomplete or damaged."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            # A row without its line break was cut off by a kill.
            row = parse_json(line.decode("utf-8")) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        yield row if isinstance(row, dict) and _is_intact(row) else None


def _is_intact(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("key"), str):
        return False
    content = {name: value for name, value in row.items() if name != "sha256"}
    return row.get("sha256") == fingerprint(content)


def read_trajectories(directory: Path) -> list[dict[str, Any]]:
    """Return the intact rows of a run directory in order; empty if the file does not exist."""
    return [row for row in _intact(directory / FILE) if row is not None]


def from_json(values: Mapping[str, Any]) -> AgentTrajectory:
    """Return the trajectory with these values, from `asdict` or from JSON."""
    turns = []
    for turn in values["turns"]:
        calls = tuple(Call(**call) for call in turn["calls"])
        turns.append(ModelTurn(**{**turn, "calls": calls}))
    return AgentTrajectory(**{**values, "turns": tuple(turns)})


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables whose names look like those of secrets, the longest value first."""
    values = {value.strip() for name, value in environment.items() if SECRET_NAMES.search(name)}
    secrets = [value for value in values if len(value) >= SHORTEST_SECRET]
    # Descending, so that a secret that contains another one is replaced first and leaves no rest.
    return sorted(secrets, key=len, reverse=True)


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """Replace secrets, and texts that look like secrets, in a JSON value."""
    if isinstance(value, dict):
        return {without_secrets(name, secrets): without_secrets(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return SECRET_FORMS.sub(HIDDEN, value)
