"""The protocol of a tracker, and what it receives. The record of a run is its metrics.jsonl: nothing reads a tracker.

A module of a tracker has `build(settings, subject)`, which starts the tracked run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

SECRET = {"token", "key", "apikey", "secret", "password", "passwd", "pw", "credential", "auth", "authorization"}
"""Last word, in the singular, of the name of a setting that is never passed on."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
LOGIN = re.compile(r"(?<=://)(?:[^/:@\s]*:\S*|[^/@\s]+)@")
"""Name and password in an address; a password may have / and @ in it."""
QUERY = re.compile(r"(?<=[?&;])([^?&;=\s]+)=([^&;#\s]+)")
"""A name and its value behind the ? of an address."""

Row = Mapping[str, float]
"""One line of metrics.jsonl without its nulls: `step`, `time` (seconds) and metrics."""


@dataclass(frozen=True)
class Subject:
    """The stage that is tracked, in plain values.

    Attributes:
        id: the same for all attempts that continue each other; [a-z0-9_-] only.
        name: for people; several runs may have the same.
        recipe: of this stage.
        group: name of the study, or of the recipe on the command line.
        tags: swept settings as `setting=value`, then the user's own.
        config: the resolved settings without secrets; `level` is the first swept setting, else the recipe.
        question: what the recipe answers.
        folder: where trackers keep their files.
        resumed: whether an earlier attempt has the same id.
    """

    id: str
    name: str
    recipe: str
    group: str
    tags: list[str]
    config: dict[str, Any]
    question: str
    folder: Path
    resumed: bool


@dataclass(frozen=True)
class Table:
    """Named columns and rows of plain values."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Outcome:
    """What a stage found.

    Attributes:
        final: metric of the stage, or else of its last policy → number.
        tables: `policies`, every metric of every policy with n and interval, and `samples`, replies side by side.
    """

    final: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)


class Tracker(Protocol):
    """A tracked run that has been started.

    Attributes:
        continues: whether the rows of an earlier attempt are there already; else they are logged again, first thing.
    """

    continues: bool

    def log(self, row: Row) -> None:
        """Add one row. Steps need not increase."""

    def finish(self, status: str, outcome: Outcome) -> None:
        """End the tracked run. `status` is completed, failed or interrupted."""


def redacted(value: Any) -> Any:
    """Plain values in which passwords and the like are replaced by “…”, wherever they stand."""
    if isinstance(value, Mapping):
        return {key: "…" if _is_secret(str(key), item) else redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    if isinstance(value, str):  # an address may carry a login or a key
        return QUERY.sub(_redact_query, LOGIN.sub("…@", value))
    return value


def _is_secret(name: str, value: Any) -> bool:
    """Whether api_key, api-key, apiKey, Authorization, … holds something; numbers of tokens or keys are counts."""
    last_word = (WORD.findall(name) or [""])[-1].lower()
    if last_word in SECRET:
        return bool(value)
    is_plural = last_word.endswith("s") and last_word.removesuffix("s") in SECRET
    return bool(value) and is_plural and not isinstance(value, int | float)


def _redact_query(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return f"{name}=…" if _is_secret(name, value) else match[0]
