"""The only check of the components' requirements against the capabilities of the data. Does not import torch.

The hint of each message is computed from the registry: other suitable data, and other options of the same group that
work with these data. Components of plug-ins are checked and suggested like built-in ones.
"""

from __future__ import annotations

import dataclasses
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
"""Capabilities that nearly all data have."""


@dataclass(frozen=True)
class RunPart:
    """Component of a run.

    Attributes:
        label: the component as written in a command, such as "reward=bt".
        requires: capabilities that the data must provide.
        group: config group whose other options may replace it; empty if there is none.
    """

    label: str
    requires: Requirements
    group: str = ""


def problems(config: Config) -> list[str]:
    """Return one message for each component of the run whose requirements the data do not meet."""
    parts = _parts(config)
    lines = [describe_missing(part, config, parts) for part in parts]
    return list(dict.fromkeys(filter(None, lines)))


def describe_missing(part: RunPart, config: Config, parts: Iterable[RunPart] = ()) -> str:
    """Return the capabilities that the data lack for one component, with alternatives; empty if they lack none.

    Args:
        parts: all components of the run; data that suit all of them are suggested first.
    """
    provided = config.data.capabilities
    lacking = missing(part.requires, provided)
    if not lacking:
        return ""
    data = registry.kind_of("data", config.data)
    titles = " and ".join(item.title for item in lacking)
    options = suitable_options(part.group, provided) if part.group else []
    by_group = {part.group: options, "data": suitable_data(part, parts, own_files=not config.data.is_generated)}
    suggestions = [f"{group}={'|'.join(names)}" for group, names in by_group.items() if names]
    hint = f"; use {' or '.join(suggestions)}" if suggestions else ""
    if part.group == "algorithm" and config.algorithm.outputs.model:
        hint += "; if the run only starts from such a stage, name a model instead: needs.policy=DIR or a hub id"
    return f"{part.label} needs {titles}, which data={data} does not have{hint}"


def suitable_data(part: RunPart, parts: Iterable[RunPart] = (), own_files: bool = False) -> list[str]:
    """Return options of `data` that meet the requirements of all `parts` or, if there are none, of `part` alone.

    Args:
        own_files: True to name kinds that read any file first, False to name generated data first.
    """
    options = sorted(inventory.options("data"), key=_by_file_and_name if own_files else _by_world_and_name)
    everything = tuple(item for other in (part, *parts) for item in other.requires)
    for requires in (everything, part.requires):
        suitable = [name for name in options if not missing(requires, _provided_by(name))]
        if suitable:
            return suitable[:MAX_SUGGESTIONS]
    return []


def suitable_options(group: str, provided: Capability) -> list[str]:
    """Return options of a group that work with data of these capabilities, from specific to general.

    An option that works with nearly all data is not a useful suggestion, so it is skipped.
    """
    suitable = {}
    for name in inventory.options(group):
        needs = _required_by(group, name)
        is_specific = any(not need & USUAL for need in needs)
        if is_specific and not missing(needs, provided):
            suitable[name] = needs
    # An option with more requirements fits these data more closely.
    ordered = sorted(suitable, key=lambda name: (-len(suitable[name]), name))
    return ordered[:MAX_SUGGESTIONS]


def _by_world_and_name(option: str) -> tuple[bool, bool, str]:
    """Return the sort key of data: worlds that need no file, then options named like their kind, then the name."""
    kind = inventory.written_values("data", option)["kind"]
    cls: Any = registry.settings_class("data", kind)
    return not cls.is_generated, option != kind, option


def _by_file_and_name(option: str) -> tuple[bool, bool, bool, str]:
    """Return the sort key of data for a user with files: first kinds that read any file, worlds last."""
    kind = inventory.written_values("data", option)["kind"]
    cls: Any = registry.settings_class("data", kind)
    return cls.is_generated, option != kind, not maps_columns(kind), option


def maps_columns(kind: str) -> bool:
    """Return True if settings name the columns that a kind of data reads, so that it can read files of any form."""
    fields = {field.name for field in dataclasses.fields(registry.settings_class("data", kind))}
    # an environment reads prompts from a file too, but needs code besides it
    return "prompt" in fields and "environment" not in fields


def _parts(config: Config) -> list[RunPart]:
    """Return the components of a run that may require capabilities of the data."""
    return [_part(group, settings, config) for group, settings in config.parts() if group != "data"]


def _part(group: str, settings: Any, config: Config) -> RunPart:
    """Return the settings of a group as a component."""
    requires = _requirements(settings)
    # without shares of a mixture, all training rows come from the corpora
    only_corpora = bool(config.corpus_roles) and config.mixture.shares is None
    if group == "algorithm" and only_corpora and config.algorithm.inputs.corpus_suffices:
        requires = tuple(item for item in requires if not item & Capability.PAIRS)
    return RunPart(f"{group}={registry.kind_of(group, settings)}", requires, group)


def _requirements(settings: Any) -> Requirements:
    """Return `requirements` of the settings if they define it, else the declaration of their class."""
    declared: Requirements = getattr(settings, "requires", ())
    requires: Requirements = getattr(settings, "requirements", declared)
    return requires


@cache
def _required_by(group: str, option: str) -> Requirements:
    """Return the capabilities that an option requires of the data."""
    settings = _settings(group, option)
    if settings is not None:
        return _requirements(settings)
    declared: Requirements = getattr(_class(group, option), "requires", ())
    return declared


@cache
def _provided_by(option: str) -> Capability:
    """Return the capabilities that an option of `data` provides."""
    settings = _settings("data", option)
    if settings is not None:
        provided: Capability = settings.capabilities
        return provided
    # A file that the user has to name is still missing, so only the declaration of the class is known.
    cls: Any = _class("data", option)
    return cls.provides | Capability.SINGLE_TURN


def _class(group: str, option: str) -> Any:
    """Return the settings class of an option."""
    return registry.settings_class(group, inventory.written_values(group, option)["kind"])


def _settings(group: str, option: str) -> Any:
    """Return the settings in an option's file; None if a required setting, such as a path, has no value."""
    values = dict(inventory.written_values(group, option))
    del values["kind"]
    return schema.build(_class(group, option), values, group, [])
