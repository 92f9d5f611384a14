"""From composed values to a checked config: build → tune → complete → rules. Runs before torch is imported.

A composed config consists of plain YAML values (`compose.py`). `check` converts it to dataclasses, or raises one
ConfigError that lists every problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import matching, registry, root, schema
from rlhf_lab.config.root import Config, is_corpus_role
from rlhf_lab.config.tuned import with_tuned
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import contributed_objects, named
from rlhf_lab.core.ranges import CheckedSettings


def check(values: Mapping[str, Any]) -> Config:
    """Convert composed values to dataclasses. Raise ConfigError listing every problem."""
    config = effective(values)
    if problems := rules(config):
        raise ConfigError(problems)
    return config


def effective(values: Mapping[str, Any]) -> Config:
    """Convert composed values that may be incomplete to dataclasses; rules between sections are not checked."""
    problems: list[str] = []
    config = _build(values, problems)
    if config is None or problems:
        raise ConfigError(problems)
    return completed(config)


def _build(values: Mapping[str, Any], problems: list[str]) -> Config | None:
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
    config: Config | None = schema.build(root.run_class(), simple, "", problems, built=built)
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


def completed(config: Config) -> Config:
    """Return the config with values that follow from other sections: the data's seed and the algorithm's defaults."""
    algorithm = config.algorithm.completed(config)
    # A negative seed is not passed on, because `rules` will reject it with a message.
    data = config.data if config.seed < 0 else config.data.of_run(config.seed)
    return config.replace(algorithm=algorithm, data=data)


def rules(config: Config) -> list[str]:
    """Return one message for each broken rule: missing capabilities of the data, wrong roles, and rules of sections."""
    problems = []
    # All problems are collected before an error is raised, so that a user can correct them at once.
    if config.seed < 0:
        problems.append(f"seed={config.seed} is negative; use 0 or more")
    if not config.outputs.strip():
        problems.append("outputs is empty; write outputs=DIR, or outputs=. for the working directory")
    problems += _role_problems(config)
    problems += matching.problems(config)
    for section in config.sections().values():
        problems += section.contradictions(config)
    for find_problems in contributed_objects("rules"):
        problems += find_problems(config)
    return problems


def _role_problems(config: Config) -> list[str]:
    """Return messages about roles of `needs` that are missing, or that nothing in the run reads."""
    algorithm = config.algorithm
    kind = registry.kind_of("algorithm", algorithm)
    problems = [
        f"needs.{role} is not set; algorithm={kind} starts from it, e.g. +needs.{role}=sft"
        for role in algorithm.inputs.needs
        if not config.needs.get(role)
    ]
    read_by_sections = {role for section in config.sections().values() for role in section.roles_read(config)}
    read = {*algorithm.inputs.needs, *algorithm.inputs.optional, *read_by_sections}
    # The run named here provides the gold, so it is not a policy, even if the algorithm accepts policies in any role.
    golds = named("gold_sources")
    for role in config.needs:
        holds_rows = bool(algorithm.trains_on) and is_corpus_role(role)
        is_policy = algorithm.inputs.any_policies and role not in golds
        if role not in read and not holds_rows and not is_policy:
            problems.append(f"needs.{role} is not used by algorithm={kind}{schema.did_you_mean(role, read)}")
    return problems
