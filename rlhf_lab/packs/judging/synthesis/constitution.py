"""Constitutions: named principles for judging, criticising and revising responses, read from a YAML file.

    name: mine
    principles:
      truthful: says nothing that is wrong
      concise: has no filler
    judge: Of two replies that are equally truthful, the shorter one is better.   # optional
    critique: Name a violation only where you can quote it.                       # optional
    revise: Keep what is right as it is.                                          # optional

`judge` goes to the judge of `cai_preferences`, `critique` and `revise` go to the writer of `synthetic_sft`. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.data.rows import describe

FOLDER = Path(__file__).parent / "constitutions"
"""Directory of the shipped constitutions. The suffix is `.yml`, because Hydra lists every `.yaml` as an option."""
INSTRUCTIONS = ("judge", "critique", "revise")
KEYS = ("name", "principles", *INSTRUCTIONS)


@dataclass(frozen=True)
class Constitution:
    """Principles for responses.

    Attributes:
        principles: name → description of a response that follows the principle.
        instructions: one of `INSTRUCTIONS` → further instructions; "" if there are none.
    """

    name: str
    principles: Mapping[str, str]
    instructions: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.principles)

    def described(self) -> str:
        """Return the principles, one per line."""
        return "\n".join(f"- {name}: the reply {meaning}" for name, meaning in self.principles.items())


def named_principle(text: object, names: Sequence[str]) -> str | None:
    """Return the principle that an answer names, ignoring case and spaces around it; None for any other text."""
    by_text = {name.strip().casefold(): name for name in names}
    return by_text.get(text.strip().casefold()) if isinstance(text, str) else None


def constitution_path(setting: str, shipped: str) -> Path:
    """Return the file of a setting, or the shipped constitution of that name if the setting is empty."""
    return Path(setting).expanduser() if setting else FOLDER / f"{shipped}.yml"


def content_digest(path: Path) -> str:
    """Return the SHA-256 of a constitution's file, or its name if there is no such file (see `load_constitution`)."""
    return file_digest(path) if path.is_file() else str(path)


def load_constitution(path: Path) -> Constitution:
    """Read a constitution. Raises ConfigError with all problems of the file."""
    values = read_mapping(path, "the keys name and principles, see docs/judging/synthesis.md", "algorithm.constitution")
    if problems := _problems(values):
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    # a missing or empty key means no further instructions
    instructions = {key: (values.get(key) or "").strip() for key in INSTRUCTIONS}
    principles = {name: meaning.strip() for name, meaning in values["principles"].items()}
    return Constitution(values["name"], principles, instructions)


def _problems(values: Mapping[Any, Any]) -> list[str]:
    problems = [f"{key} is not a key of a constitution; it has {', '.join(KEYS)}" for key in values if key not in KEYS]
    if not _is_text(values.get("name")):
        problems.append(f"name is {describe(values.get('name'))}; expected text, such as name: mine")
    for key in INSTRUCTIONS:
        if not isinstance(values.get(key, ""), (str, type(None))):
            problems.append(f"{key} is {describe(values[key])}; expected text, or leave the key out")
    principles = values.get("principles")
    expected = "expected one line per principle, name: description of a good response"
    if not isinstance(principles, Mapping) or not principles:
        return [*problems, f"principles is {describe(principles)}; {expected}"]
    seen: set[str] = set()
    for name, meaning in principles.items():
        # answers name principles, and are read without case
        normalised = str(name).strip().casefold()
        if normalised in seen:
            problems.append(f"principles.{name} occurs twice, ignoring case; give one of them another name")
        seen.add(normalised)
        if not _is_text(name) or not _is_text(meaning):
            problems.append(f"principles.{name} is {describe(meaning)}; {expected}")
    return problems


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
