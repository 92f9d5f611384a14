"""From composed values to a checked config: build → tune → complete → rules. Runs before torch is imported.

A composed config consists of plain YAML values (`compose.py`). `check` converts it to dataclasses, or raises one
ConfigError that lists every problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import build, matching, registry, schema
from rlhf_lab.config.root import Config, is_corpus_role
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import contributed_objects, named


def check(values: Mapping[str, Any]) -> Config:
    """Convert composed values to dataclasses. Raise ConfigError listing every problem."""
    config = effective(values)
    if problems := rules(config):
        raise ConfigError(problems)
    return config


def effective(values: Mapping[str, Any]) -> Config:
    """Convert composed values that may be incomplete to dataclasses; rules between sections are not checked."""
    problems: list[str] = []
    config = build.build(values, problems)
    if config is None or problems:
        raise ConfigError(problems)
    return completed(config)


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
