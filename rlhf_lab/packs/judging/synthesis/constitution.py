"""Constitutions: named principles that replies are judged, criticised and revised by, read from a YAML file.

    name: mine
    principles:
      truthful: says nothing that is wrong
      concise: has no filler
    judge: Of two replies that are equally truthful, the shorter one is better.   # optional
    critique: Name a violation only where you can quote it.                       # optional
    revise: Keep what is right as it is.                                          # optional

`judge` goes to the judge of `cai_preferences`; `critique` and `revise` to the writer of `synthetic_sft`. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.rows import describe

FOLDER = Path(__file__).parent / "constitutions"
"""Of the shipped ones; `.yml`, because Hydra lists every `.yaml` below the package as an option."""
INSTRUCTIONS = ("judge", "critique", "revise")
KEYS = ("name", "principles", *INSTRUCTIONS)


@dataclass(frozen=True)
class Constitution:
    """What replies are judged by.

    Attributes:
        principles: name → what a reply does that is good by it.
        instructions: one of `INSTRUCTIONS` → further ones; "" where there are none.
    """

    name: str
    principles: Mapping[str, str]
    instructions: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.principles)

    def described(self) -> str:
        """The principles, one a line."""
        return "\n".join(f"- {name}: the reply {meaning}" for name, meaning in self.principles.items())


def constitution_path(setting: str, shipped: str) -> Path:
    """The file that a setting names; the shipped one of that name where the setting is empty."""
    return Path(setting).expanduser() if setting else FOLDER / f"{shipped}.yml"


def content_digest(path: Path) -> str:
    """SHA-256 of a constitution's file; its name where there is no such file, which `load_constitution` reports."""
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path)


def load_constitution(path: Path) -> Constitution:
    """Read a constitution. Raises ConfigError with everything that is wrong with the file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"algorithm.constitution={path}: the file cannot be read ({error.strerror}); name a YAML file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first_lines = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path}: is no YAML ({first_lines}); see docs/judging/synthesis.md") from None
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{path}: is {describe(values)}; expected the keys name and principles, see docs/judging/synthesis.md"
        )
    if problems := _problems(values):
        raise ConfigError([f"{path}: {problem}" for problem in problems])
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
    expected = "expected a line for each, name: what a good reply does"
    if not isinstance(principles, Mapping) or not principles:
        return [*problems, f"principles is {describe(principles)}; {expected}"]
    for name, meaning in principles.items():
        if not _is_text(name) or not _is_text(meaning):
            problems.append(f"principles.{name} is {describe(meaning)}; {expected}")
    return problems


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
