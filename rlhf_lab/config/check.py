"""From composed values to a checked config: build → tune → complete → rules. Runs before torch is imported.

A composed config is plain YAML values (`compose.py`). `check` turns it into dataclasses, or raises one ConfigError with
every problem found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import build, matching, registry, schema
from rlhf_lab.config.root import Config, is_corpus_role
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import contributed


def check(values: Mapping[str, Any]) -> Config:
    """Dataclasses for composed values. Raises ConfigError with every problem found."""
    config = effective(values)
    if problems := rules(config):
        raise ConfigError(problems)
    return config


def effective(values: Mapping[str, Any]) -> Config:
    """Dataclasses for composed values that need not be a whole run: the rules between sections are not checked."""
    problems: list[str] = []
    config = build.build(values, problems)
    if config is None or problems:
        raise ConfigError(problems)
    return completed(config)


def completed(config: Config) -> Config:
    """The config with what follows from other sections: the seed of the data, and what the algorithm leaves open."""
    algorithm = config.algorithm.completed(config)
    data = config.data if config.seed < 0 else config.data.of_run(config.seed)  # `rules` refuses a negative seed
    return config.replace(algorithm=algorithm, data=data)


def rules(config: Config) -> list[str]:
    """Every rule between sections that does not hold: what the data lack, wrong roles, and what each section finds."""
    problems = []
    if config.seed < 0:
        problems.append(f"seed={config.seed} is negative; use 0 or more")
    if not config.outputs.strip():
        problems.append("outputs is empty; write outputs=FOLDER, or outputs=. for the working directory")
    problems += _role_problems(config)
    problems += matching.problems(config)
    for section in config.sections().values():
        problems += section.contradictions(config)
    for find_problems in contributed("rules"):
        problems += find_problems(config)
    return problems


def _role_problems(config: Config) -> list[str]:
    """Roles of `needs` that are missing, or that nothing in the run reads."""
    algorithm = config.algorithm
    kind = registry.kind_of("algorithm", algorithm)
    problems = [
        f"needs.{role} is not set; algorithm={kind} starts from it, e.g. +needs.{role}=sft"
        for role in algorithm.required_needs
        if not config.needs.get(role)
    ]
    read_by_sections = {role for section in config.sections().values() for role in section.roles_read(config)}
    read = {*algorithm.required_needs, *algorithm.optional_needs, *read_by_sections}
    for role in config.needs:
        holds_rows = bool(algorithm.trains_on) and is_corpus_role(role)
        if role not in read and not holds_rows and not algorithm.any_needs:
            problems.append(f"needs.{role} is not used by algorithm={kind}{schema.did_you_mean(role, read)}")
    return problems
