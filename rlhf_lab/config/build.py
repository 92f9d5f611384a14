"""Builds the sections and groups of a run from composed values, with the settings that are left to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import registry, root, schema
from rlhf_lab.config.tuned import with_tuned
from rlhf_lab.core.errors import ConfigError


def build(values: Mapping[str, Any], problems: list[str]) -> root.Config | None:
    """A run's sections and groups; None where one of them is wrong, with every reason in `problems`."""
    names = root.names()
    groups = registry.groups()
    tuned = with_tuned(values, problems)
    problems += [f"{group} is missing; choose one of {_choices(group)}" for group in groups if group not in values]
    plain, chosen = {}, {}
    for key, value in tuned.items():
        if key in groups:
            chosen[key] = build_group(key, value, problems)
        elif key in names:
            plain[key] = value
        else:
            # `recipe` is no section, but what people mean by `recipie`
            problems.append(f"{key} is not a setting{schema.did_you_mean(key, {*names, 'recipe'})}")
    # A group that is wrong is None here, so that what else is wrong is found as well.
    config: root.Config | None = schema.build(
        root.run_class(), plain, "", problems, built={**dict.fromkeys(groups), **chosen}
    )
    return None if any(chosen.get(group) is None for group in groups) else config


def build_group(group: str, values: Any, problems: list[str]) -> Any:
    """Settings of a group: of the one kind that is chosen, or of all of them by name (`reward.terms`)."""
    parts = registry.parts_of(group)
    if not parts:
        return build_kind(group, values, problems)
    options = values.get(parts) if isinstance(values, Mapping) else None
    if not isinstance(options, Mapping):
        problems.append(f"{group} has no {parts}; choose some of {_choices(group)}")
        return None
    built = {name: build_kind(group, option, problems, f"{group}.{parts}.{name}") for name, option in options.items()}
    cls: Any = registry.sections()[group].cls
    prepared = cls.prepared({**values, parts: built}, problems)
    if prepared is None or any(option is None for option in built.values()):
        return None
    return schema.build(cls, prepared, group, problems)


def build_kind(group: str, values: Any, problems: list[str], where: str = "") -> Any:
    """Settings of the kind that values name; None where they are wrong.

    Args:
        where: dotted path of the values; the group's name if it is empty.
    """
    where = where or group
    if not isinstance(values, Mapping) or "kind" not in values:
        problems.append(f"{where} has no kind; choose one of {_choices(group)}")
        return None
    try:
        cls = registry.settings_class(group, str(values["kind"]))
    except ConfigError as error:
        problems.extend(error.problems)
        return None
    return schema.build(cls, {key: value for key, value in values.items() if key != "kind"}, where, problems)


def _choices(group: str) -> str:
    return f"{group}={'|'.join(registry.kinds(group))}"
