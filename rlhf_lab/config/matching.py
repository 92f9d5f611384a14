"""The one check of what the parts of a run require against what its data provide. Imports no torch.

The hint of each message is computed from the registry: other data that would do, and other options of the same group
that work with these data. Parts of plug-ins are checked and suggested like the lab's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from rlhf_lab.config import inventory, registry, schema
from rlhf_lab.core.capabilities import Capability, Requirements, missing

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

MAX_SUGGESTIONS = 4
"""Maximum number of options that a hint names per group."""


USUAL = Capability.TEXT | Capability.SINGLE_TURN
"""Capabilities of most data."""


@dataclass(frozen=True)
class Part:
    """One part of a run.

    Attributes:
        label: the part as a command chooses it, such as "reward=bt".
        requires: capabilities that the data must provide.
        group: config group whose other options may replace it; empty if there is none.
    """

    label: str
    requires: Requirements
    group: str = ""


def problems(config: Config) -> list[str]:
    """One message for each part of the run whose requirements the data do not meet."""
    parts = _parts(config)
    lines = [describe_missing(part, config, parts) for part in parts]
    return list(dict.fromkeys(filter(None, lines)))


def describe_missing(part: Part, config: Config, parts: Iterable[Part] = ()) -> str:
    """What the data lack for one part, and what to choose instead; empty if they lack nothing.

    Args:
        parts: all parts of the run; data that suit all of them are suggested first.
    """
    provided = config.data.capabilities
    lacking = missing(part.requires, provided)
    if not lacking:
        return ""
    data = registry.kind_of("data", config.data)
    titles = " and ".join(item.title for item in lacking)
    options = suitable_options(part.group, provided) if part.group else []
    by_group = {part.group: options, "data": suitable_data(part, parts)}
    suggestions = [f"{group}={'|'.join(names)}" for group, names in by_group.items() if names]
    hint = f"; use {' or '.join(suggestions)}" if suggestions else ""
    if part.group == "algorithm" and config.algorithm.makes_model:
        hint += "; a run that only starts from such a stage names a model instead: needs.policy=FOLDER or a hub id"
    return f"{part.label} needs {titles}, which data={data} does not have{hint}"


def suitable_data(part: Part, parts: Iterable[Part] = ()) -> list[str]:
    """Options of `data` that meet the requirements of all `parts`, or else of `part`; sampled worlds come first."""
    options = sorted(inventory.options("data"), key=_by_world_and_name)
    everything = tuple(item for other in (part, *parts) for item in other.requires)
    for requires in (everything, part.requires):
        suitable = [name for name in options if not missing(requires, _provided_by(name))]
        if suitable:
            return suitable[:MAX_SUGGESTIONS]
    return []


def suitable_options(group: str, provided: Capability) -> list[str]:
    """Options of a group that work with data of these capabilities, the most specific ones first.

    An option that works with nearly all data says nothing about these; it is left out.
    """
    requirements = {name: _required_by(group, name) for name in inventory.options(group)}
    specific = {name: needs for name, needs in requirements.items() if any(not need & USUAL for need in needs)}
    suitable = {name: needs for name, needs in specific.items() if not missing(needs, provided)}
    return sorted(suitable, key=lambda name: (-len(suitable[name]), name))[:MAX_SUGGESTIONS]


def _by_world_and_name(option: str) -> tuple[bool, bool, str]:
    """Sort key of data: worlds that need no file, then options called as their kind, then the alphabet."""
    kind = inventory.written_values("data", option)["kind"]
    cls: Any = registry.settings_class("data", kind)
    return not cls.drawn, option != kind, option


def _parts(config: Config) -> list[Part]:
    """The components of a run that require something of the data."""
    return [_part(group, settings) for group, settings in config.parts() if group != "data"]


def _part(group: str, settings: Any) -> Part:
    return Part(f"{group}={registry.kind_of(group, settings)}", _requirements(settings), group)


def _requirements(settings: Any) -> Requirements:
    """`requirements` of settings whose class has them, else what the class declares."""
    declared: Requirements = getattr(settings, "requires", ())
    requires: Requirements = getattr(settings, "requirements", declared)
    return requires


@cache
def _required_by(group: str, option: str) -> Requirements:
    """What an option requires of the data."""
    settings = _settings(group, option)
    if settings is not None:
        return _requirements(settings)
    declared: Requirements = getattr(_class(group, option), "requires", ())
    return declared


@cache
def _provided_by(option: str) -> Capability:
    """What an option of `data` provides."""
    settings = _settings("data", option)
    if settings is not None:
        provided: Capability = settings.capabilities
        return provided
    cls: Any = _class("data", option)
    return cls.provides | Capability.SINGLE_TURN


def _class(group: str, option: str) -> Any:
    return registry.settings_class(group, inventory.written_values(group, option)["kind"])


def _settings(group: str, option: str) -> Any:
    """Settings of an option as its file has them; None if a setting, such as the path of a file, has no value."""
    values = inventory.written_values(group, option)
    return schema.build(_class(group, option), {key: values[key] for key in values if key != "kind"}, group, [])
