"""The vocabulary of the tables: how a setting is translated into TRL's arguments. Imports neither torch nor TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.config.root import Config

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """How one setting is translated.

    Attributes:
        note: the TRL arguments it becomes, or who takes care of it.
        refusal: why other values cannot be honoured; what to write instead. Empty where every value can be.
        allowed: (value, root config) → whether this value can be honoured.
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
        name: of its class; the class of its arguments is the same with Config for Trainer.
        algorithm, rollout: setting → how it is translated. A trainer that does not sample leaves `rollout` empty: the
            lab's own sampler reads it.
        fixed: arguments that no setting decides.
        metrics: TRL's name of a metric → the lab's name of one that means the same.
        has_reference: whether it is given pairs of replies and the frozen reference beside the policy.
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
        """Whether it samples replies itself."""
        return bool(self.rollout)

    def sections(self, root: Config) -> list[tuple[str, Any, Mapping[str, Option]]]:
        """(name, settings, table) of every section of the config that a table answers for."""
        sections: list[tuple[str, Any, Mapping[str, Option]]] = [("algorithm", root.algorithm, self.algorithm)]
        if self.samples:
            sections.append(("rollout", root.rollout, self.rollout))
        return sections


def to(argument: str) -> Option:
    """The same meaning under another name."""
    return Option(argument, arguments=lambda value, root: {argument: value})


def ours(note: str) -> Option:
    """Not TRL's business: the lab does it before, around or after the trainer."""
    return Option(note)


def only(value: Any, refusal: str, *alternatives: Any) -> Option:
    """TRL can honour these values alone; it has no argument for the setting."""
    allowed = (value, *alternatives)
    return Option(f"must be {' or '.join(map(str, allowed))}", refusal, lambda configured, root: configured in allowed)
