"""Vocabulary of the tables: how a setting is translated into TRL's arguments. Imports neither torch nor TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.config.root import Config

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """Translation of one setting.

    Attributes:
        note: TRL arguments that the setting becomes, or the part of rlhf_lab that implements it.
        refusal: why other values are not supported, and the alternative. Empty if every value is supported.
        allowed: (value, root config) → True if this value is supported.
        arguments: (value, root config) → TRL arguments.
    """

    note: str
    refusal: str = ""
    allowed: Callable[[Any, Config], bool] = lambda value, root: True
    arguments: Callable[[Any, Config], Arguments] = lambda value, root: {}


@dataclass(frozen=True)
class Trainer:
    """One of TRL's trainers.

    Attributes:
        name: name of its class. The class of its arguments has Config in place of Trainer.
        algorithm: setting of the algorithm → its translation.
        rollout: setting of the rollout → its translation; empty if the trainer does not sample, because rlhf_lab's own
            sampler reads these settings then.
        fixed: arguments that do not depend on settings.
        metrics: TRL's name of a metric → name of the equivalent metric here.
        has_reference: True if the trainer gets pairs of responses and a frozen reference in addition to the policy.
    """

    name: str
    algorithm: Mapping[str, Option]
    rollout: Mapping[str, Option] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    has_reference: bool = False

    @property
    def config(self) -> str:
        return self.name.replace("Trainer", "Config")

    @property
    def samples(self) -> bool:
        """True if the trainer samples responses itself."""
        return bool(self.rollout)

    # A trainer without sampling leaves the rollout section to the built-in sampler, so it has no table for it.
    def sections(self, root: Config) -> list[tuple[str, Any, Mapping[str, Option]]]:
        """Return (name, settings, table) of every section of the config that has a table."""
        sections: list[tuple[str, Any, Mapping[str, Option]]] = [("algorithm", root.algorithm, self.algorithm)]
        if self.samples:
            sections.append(("rollout", root.rollout, self.rollout))
        return sections


def renamed_to(argument: str) -> Option:
    """Return the translation of a setting that TRL has under another name."""
    return Option(argument, arguments=lambda value, root: {argument: value})


def handled_by_lab(note: str) -> Option:
    """Return the translation of a setting that rlhf_lab implements before, around or after the trainer."""
    return Option(note)


def fixed_to(value: Any, refusal: str, *alternatives: Any) -> Option:
    """Return the translation of a setting for which TRL has no argument and supports only these values."""
    allowed = (value, *alternatives)
    return Option(f"must be {' or '.join(map(str, allowed))}", refusal, lambda configured, root: configured in allowed)
