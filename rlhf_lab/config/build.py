"""Construction of a run's sections and groups from composed values, with the settings that depend on the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import registry, root, schema
from rlhf_lab.config.tuned import with_tuned
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.ranges import CheckedSettings


def build(values: Mapping[str, Any], problems: list[str]) -> root.Config | None:
    """Build a run's sections and groups. Return None if one of them is wrong; `problems` then has all reasons."""
    names = root.names()
    groups = registry.groups()
    tuned = with_tuned(values, problems)
    problems += [f"{group} is missing; choose one of {_choices(group)}" for group in groups if group not in values]
    simple, chosen = {}, {}
    for key, value in tuned.items():
        if key in groups:
            chosen[key] = build_group(key, value, problems)
        elif key in names:
            simple[key] = value
        elif key == "recipe":
            problems.append(_recipe_problem(value))
        else:
            # `recipe` is not a section, but users who type `recipie` mean it
            problems.append(f"{key} is not a setting{schema.did_you_mean(key, {*names, 'recipe'})}")
    # A group that is wrong is None here, so that problems of other sections are found in the same run.
    built = {**dict.fromkeys(groups), **chosen}
    config: root.Config | None = schema.build(root.run_class(), simple, "", problems, built=built)
    is_incomplete = any(chosen.get(group) is None for group in groups)
    return None if is_incomplete else config


def _recipe_problem(value: Any) -> str:
    """Return what is wrong with a file of the user that sets `recipe`, which only a command line has."""
    if isinstance(value, Mapping):
        settings = ", ".join(map(str, value))
        return f"recipe has the settings {settings}: the file of a recipe begins with the line `# @package _global_`"
    return f"recipe={value} is not a setting of a file; a recipe that builds on another one has defaults: [{value}]"


def build_group(group: str, values: Any, problems: list[str]) -> Any:
    """Build the settings of a group: of the chosen kind, or of all chosen kinds by name (`reward.terms`)."""
    parts = registry.parts_of(group)
    if not parts:
        return build_kind(group, values, problems)
    options = values.get(parts) if isinstance(values, Mapping) else None
    if not isinstance(options, Mapping):
        problems.append(f"{group} has no {parts}; choose some of {_choices(group)}")
        return None
    built = {}
    for name, option in options.items():
        built[name] = build_kind(group, option, problems, f"{group}.{parts}.{name}")
    cls: Any = registry.sections()[group].cls
    prepared = cls.prepared({**values, parts: built}, problems)
    if prepared is None or any(option is None for option in built.values()):
        return None
    return schema.build(cls, prepared, group, problems)


def build_kind(group: str, values: Any, problems: list[str], where: str = "") -> Any:
    """Build the settings of the kind that the values name; return None if they are wrong.

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
    own = {key: value for key, value in values.items() if key != "kind"}
    # Settings of a plug-in may be any dataclass, without `prepared`.
    prepared = cls.prepared(own, problems) if issubclass(cls, CheckedSettings) else own
    return None if prepared is None else schema.build(cls, prepared, where, problems)


def _choices(group: str) -> str:
    """Return the choices of a group as written on the command line."""
    kinds = "|".join(registry.kinds(group))
    return f"{group}={kinds}"
