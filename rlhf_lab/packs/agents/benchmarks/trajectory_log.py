"""Trajectories on disk, by the content of their attempts: trajectories.jsonl, a row per attempt, complete.

A row is written whole when its attempt ends and carries a checksum. A kill between two rows loses nothing; one within
a row costs that attempt; a row that is damaged later is dropped and its attempt made anew. Runs of the same stage by
the same code share their attempts: a run with more tasks or draws than an earlier one takes what that one has.
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

from rlhf_lab.core.files import append_jsonl, fingerprint, parse_json, read_json, write_text
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, Turn

FILE = "trajectories.jsonl"
CODE = "code.json"
"""File of a run directory that says which code made it."""
HIDDEN = "[secret]"
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values are not written."""
SHORTEST_SECRET = 8
"""Characters: what is shorter would be found in ordinary text."""
SECRET_FORMS = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bAKIA[A-Z0-9]{12,}"
    r"|\b[Bb]earer [A-Za-z0-9_\-.=+/]{16,}"
)
"""Keys of well-known services, wherever they come from."""


class TrajectoryLog:
    """The attempts of a run so far.

    Attributes:
        damaged: rows that were dropped because they are not what was written.
        adopted: attempts taken from earlier runs.
    """

    def __init__(self, folder: Path):
        self.path = folder / FILE
        self._secrets = secrets_of(os.environ)
        self._lock = threading.Lock()
        rows = list(_intact(self.path))
        self._rows = {row["key"]: row for row in rows if row is not None}
        self.damaged = sum(row is None for row in rows)
        self.adopted = 0
        if self.damaged or len(self._rows) < len(rows):
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in self._rows.values()))

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def trajectory(self, key: str) -> AgentTrajectory:
        return from_json(self._rows[key]["trajectory"])

    def add(self, key: str, about: Mapping[str, Any], trajectory: AgentTrajectory) -> None:
        """Keep an attempt. Secrets of the environment, and what looks like one, are not written.

        Args:
            about: what else the row says.
        """
        row = {"key": key, **about, "trajectory": to_json(trajectory)}
        plain = json.loads(json.dumps(row, default=str))  # as it will be read: the checksum is of that
        self._append([_sealed(without_secrets(plain, self._secrets))])

    def adopt(self, keys: Iterable[str], folders: Iterable[Path]) -> None:
        """Take the attempts of these keys that the log lacks from the runs in other folders by the same code."""
        missing = {key for key in keys if key not in self}
        code = read_json(self.path.parent / CODE)
        for folder in folders:
            if not missing or code is None:
                return
            if not _same_code(code, read_json(folder / CODE)):
                continue
            rows = {row["key"]: row for row in _intact(folder / FILE) if row is not None and row["key"] in missing}
            self._append(list(rows.values()))
            self.adopted += len(rows)
            missing -= rows.keys()

    def keep_only(self, keys: Iterable[str]) -> None:
        """Drop attempts that are no part of the run any more, and put the others in the order of the keys."""
        wanted = {key: self._rows[key] for key in keys}
        if list(wanted) != list(self._rows):
            self._rows = wanted
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in wanted.values()))

    def _append(self, rows: list[dict[str, Any]]) -> None:
        with self._lock:  # agents that ask a service may end attempts in several threads
            fresh = [row for row in rows if row["key"] not in self._rows]
            if fresh:
                append_jsonl(self.path, fresh)
            self._rows |= {row["key"]: row for row in fresh}


def _same_code(mine: Mapping[str, Any], theirs: Any) -> bool:
    """Whether two runs share no definition that differs. Each may have more: other agents, other data.

    Code that only one of them has was reached from code that both have, or has nothing to do with the other.
    """
    if not isinstance(theirs, dict) or mine.get("version") != theirs.get("version"):
        return False
    definitions, others = mine.get("definitions", {}), theirs.get("definitions", {})
    return all(others.get(name, digest) == digest for name, digest in definitions.items())


def _sealed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "sha256": fingerprint(row)}


def _intact(path: Path) -> Iterator[dict[str, Any] | None]:
    """The rows of a log in order; None for one that is cut off or not what was written."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            row = parse_json(line.decode("utf-8")) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        yield row if isinstance(row, dict) and _is_intact(row) else None


def _is_intact(row: Mapping[str, Any]) -> bool:
    """Whether a row is what was written, by its checksum."""
    content = {name: value for name, value in row.items() if name != "sha256"}
    return isinstance(row.get("key"), str) and row.get("sha256") == fingerprint(content)


def read_trajectories(folder: Path) -> list[dict[str, Any]]:
    """The intact rows of a run directory, in their order; none where it has no such file."""
    return [row for row in _intact(folder / FILE) if row is not None]


def to_json(trajectory: AgentTrajectory) -> dict[str, Any]:
    return asdict(trajectory)


def from_json(values: Mapping[str, Any]) -> AgentTrajectory:
    """The inverse of `to_json`, also after JSON has been between them."""
    turns = []
    for turn in values["turns"]:
        calls = tuple(Call(**call) for call in turn["calls"])
        turns.append(Turn(**{**turn, "calls": calls}))
    return AgentTrajectory(**{**values, "turns": tuple(turns)})


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """Values of an environment that are keys by the name of their variable, the longest first."""
    values = {value.strip() for name, value in environment.items() if SECRET_NAMES.search(name)}
    return sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """JSON values in which no text holds one of the secrets, or what looks like one."""
    if isinstance(value, dict):
        return {without_secrets(name, secrets): without_secrets(item, secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    return SECRET_FORMS.sub(HIDDEN, value)
