"""Checked configs of the jobs of a command."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from rlhf_lab.config import root, smoke
from rlhf_lab.config.check import check
from rlhf_lab.config.compose import compose, recipe_values, suggest_key
from rlhf_lab.config.overrides import as_overrides, is_choice, literal, set_value
from rlhf_lab.config.typed_overrides import choice_words, key_of
from rlhf_lab.core.errors import ConfigError

MAX_CHECKS = 4
"""Maximum number of times that a job is checked without the settings found to be wrong."""


def check_job(
    fixed: list[str],
    job: dict[str, Any],
    composed: dict[tuple[str, ...], dict[str, Any]],
    rejected: Collection[str],
    problems: list[str],
    config_dir: str | None,
) -> root.Config | None:
    """Return the checked config of one job without its wrong settings, or None; explain each in `problems`.

    A check stops early if later problems would follow from an earlier one. The job is therefore checked again without
    the settings that a problem names.

    Args:
        composed: composed values by the choices of a job; see `_composed_job`.
        rejected: keys that were dropped; problems about them are consequences and are not reported.
    """
    left_out = set(rejected)
    config = None
    for _ in range(MAX_CHECKS):
        found: list[str] = []
        config = _composed_job(fixed, job, composed, found, config_dir)
        for line in found:
            is_consequence = any(_concerns(line, key) for key in left_out)
            if not is_consequence:
                problems.append(line)
        value_keys = {key for key in (*map(key_of, fixed), *job) if not is_choice(key)}
        wrong = {key for key in value_keys if any(_concerns(line, key) for line in found)}
        if not wrong:
            return config
        left_out |= wrong
        fixed = [word for word in fixed if key_of(word) not in wrong]
        job = {key: value for key, value in job.items() if key not in wrong}
        composed = {}
    return config


def _composed_job(
    fixed: Sequence[str],
    job: Mapping[str, Any],
    composed: dict[tuple[str, ...], dict[str, Any]],
    problems: list[str],
    config_dir: str | None,
) -> root.Config | None:
    """Return the checked config of one job, or None with all problems in `problems`.

    Composing is slow, so jobs that choose the same options share one entry of `composed`. A job's scalar values are set
    in a copy of it.
    """
    choices = choice_words(job)
    written = {*map(key_of, fixed), *job}
    try:
        if choices not in composed:
            composed[choices] = compose([*fixed, *choices], config_dir)
        values = copy.deepcopy(composed[choices])
        for key, value in job.items():
            if not is_choice(key):
                # Parse with Hydra's grammar, so that a swept value means the same as the typed override.
                override = OverridesParser.create().parse_override(f"{key}={literal(value)}")
                set_value(values, key, override.value())
        return check(job_values(values, written))
    except ConfigError as error:
        problems.extend(error.problems)
    except KeyError as error:
        missing_key = error.args[0]
        suggestion = suggest_key(missing_key, composed.get(choices, {}))
        problems.append(f"{missing_key} is not a setting of what was chosen{suggestion}")
    return None


def job_values(values: dict[str, Any], written: Collection[str]) -> dict[str, Any]:
    """Return the values of one job, without the study.

    The settings of the job's arm and the limits of `size` are applied.

    Args:
        values: composed values of the entire config, a copy of its own for the job: its mappings are changed.
        written: keys of the command line and of the sweep, whose values are not reduced by `size=smoke`.

    Raises:
        ConfigError: there is no such arm.
        KeyError: a setting of the arm does not exist.
    """
    study = values["study"] or {}
    arms, name = study.get("arms") or {}, study.get("arm")
    arms = arms if isinstance(arms, dict) else {}  # the check of the study explains it
    if name is not None and name not in arms:
        raise ConfigError(f"study.arm={name} is not one of study.arms: {', '.join(arms) or 'none'}")
    arm = arms.get(name) or {}
    result = {**values, "study": None}
    for key, value in arm.items():
        set_value(result, key, value)
    return smoke.sized(result, {*written, *arm}, recipe_values)


def name_and_question(fixed: Sequence[str], job: Mapping[str, Any], config_dir: str | None) -> tuple[str, str]:
    """Return (name of a job's last stage, its question); the question is empty if the recipe's own question fits."""
    written = {key_of(word): word.partition("=")[2] for word in (*fixed, *as_overrides(job))}
    recipe = written.get("recipe", "")
    algorithm = written.get("algorithm", "")
    if not recipe or not algorithm:
        return recipe or "sweep", ""
    own = compose([f"+recipe={recipe}"], config_dir)["algorithm"]
    chosen = compose([f"+recipe={recipe}", f"algorithm={algorithm}"], config_dir)["algorithm"]
    if own == chosen:
        return recipe, ""
    # The recipe's question is about its own algorithm, so another algorithm gets a question of its own.
    name = f"{recipe} algorithm={algorithm}"
    if "question" in written:
        return name, ""
    return name, f"What does algorithm={algorithm} do where the recipe {recipe} has algorithm={own['kind']}?"


def _concerns(problem: str, key: str) -> bool:
    """Return True if a problem names a key, or a setting of the group whose option the key chooses."""
    # For a choice, `group.setting` and `group=option` belong to it; otherwise the key must match exactly.
    after = r"[.=]" if is_choice(key) else r"(?![\w.])"
    return re.search(rf"(?<![\w.]){re.escape(key)}{after}", problem) is not None
