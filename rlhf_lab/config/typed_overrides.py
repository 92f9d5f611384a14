"""Overrides of a command line: which of them parse, and which name an option or a setting that exists.

Hydra stops at the first override that is wrong. Here all of them are checked, and each wrong one gets a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType, ValueType

from rlhf_lab.config import inventory, registry, root, schema, words
from rlhf_lab.config.compose import compose, suggest_key
from rlhf_lab.config.overrides import MISSING, as_overrides, is_choice, value_at
from rlhf_lab.core.errors import ConfigError


def usable_overrides(overrides: Sequence[str], problems: list[str], config_dir: str | None = None) -> list[Override]:
    """Return the overrides that parse and choose existing options; explain each of the others in `problems`."""
    return _drop_wrong_choices(_parsed(overrides, problems, config_dir), problems, config_dir)


def _parsed(overrides: Sequence[str], problems: list[str], config_dir: str | None) -> list[Override]:
    """Return the overrides that parse; explain each of the others in `problems`."""
    return words.parse(overrides, [*inventory.recipes(), *inventory.user_options(config_dir, "recipe")], problems)


def existing_overrides(
    overrides: Sequence[str], problems: list[str], config_dir: str | None
) -> tuple[list[Override], set[str]]:
    """Return (usable overrides whose keys exist, keys of all others); append all problems to `problems`.

    Hydra stops at the first key that does not exist. Keys below a wrong choice are dropped without a message of their
    own, because whether they exist depends on the choice that was intended.
    """
    parsed = _parsed(overrides, problems, config_dir)
    usable = _drop_wrong_choices(parsed, problems, config_dir)
    rejected = {override.key_or_group for override in parsed} - {override.key_or_group for override in usable}
    swept = [override for override in usable if override.is_sweep_override()]
    not_swept = [override for override in usable if not override.is_sweep_override()]
    # Composing only the choices, without values, shows which keys exist.
    first = {override.key_or_group: sweep_values(override)[0] for override in swept}
    fixed = [override.input_line or "" for override in not_swept if is_choice(override.key_or_group)]
    try:
        values = compose([*fixed, *choice_words(first)], config_dir)
    except ConfigError:
        return usable, rejected  # composing the full command reports the same error
    for override in usable:
        problem = _kind_problem(override, values)
        if problem:
            problems.append(problem)
            rejected |= {override.key_or_group, override.key_or_group.partition(".")[0]}
    existing = []
    for override in usable:
        key = override.key_or_group
        if key in rejected or key.partition(".")[0] in rejected:
            rejected.add(key)
        elif override.type == OverrideType.CHANGE and not is_choice(key) and _is_unknown(key, values):
            problems.append(f"{key} is not a setting of what was chosen{suggest_key(key, values)}")
            rejected.add(key)
        else:
            existing.append(override)
    return existing, rejected


def _is_unknown(key: str, values: Mapping[str, Any]) -> bool:
    """Return True for a dotted key that composed values do not have. Keys of Hydra are not looked up."""
    is_dotted = re.fullmatch(r"[\w.]+", key) is not None
    return is_dotted and not key.startswith("hydra.") and value_at(values, key, MISSING) is MISSING


def _kind_problem(override: Override, values: Mapping[str, Any]) -> str | None:
    """Return what to write instead of an override such as `model.kind=hf`; None for other overrides.

    Setting only the kind would keep the settings of another kind.
    """
    key = override.key_or_group
    group, _, rest = key.partition(".")
    parts = registry.parts_of(group) if group in registry.groups() else ""
    pattern = rf"{parts}\.[^.]+\.kind" if parts else "kind"
    if group not in registry.groups() or not re.fullmatch(pattern, rest) or override.is_sweep_override():
        return None
    present, kind = value_at(values, key), str(override.value())
    if present in (None, kind):
        return None
    kind_by_option = {name: inventory.written_values(group, name)["kind"] for name in inventory.options(group)}
    options = [name for name, option_kind in kind_by_option.items() if option_kind == kind]
    if not options:
        return f"{key}={kind} is not registered{schema.did_you_mean(kind, registry.kinds(group))}"
    return (
        f"{key}={kind} would keep the settings of kind {present}; choose an option, which brings its own: "
        f"{group}={'|'.join(options)}"
    )


def _drop_wrong_choices(parsed: list[Override], problems: list[str], config_dir: str | None) -> list[Override]:
    """Drop overrides that name an option or top-level key that does not exist, and explain each in `problems`."""
    root_keys = {*root.names(), "recipe", "hydra"}
    usable = []
    for override in parsed:
        key = override.key_or_group
        if key == "recipe" or key in registry.groups():
            lab_options = inventory.recipes() if key == "recipe" else inventory.options(key)
            existing = [*lab_options, *inventory.user_options(config_dir, key)]
            levels = sweep_values(override)
            # a level is one option, or a list of them: reward=[bt,length]
            chosen = [str(name) for level in levels for name in (level if isinstance(level, list) else [level])]
            if key == "recipe" and chosen != list(map(str, levels)):
                names = ",".join(chosen)
                problems.append(f"+recipe=[{names}] is a list; write +recipe={names}")
                continue
            wrong = [name for name in chosen if name not in existing]
            for name in wrong:
                suggestion = _as_path(key, name) or schema.did_you_mean(name, existing)
                problems.append(f"{key}={name} does not exist{suggestion}")
            if wrong:
                continue
        elif re.split(r"[./@]", key)[0] not in root_keys:
            problems.append(f"{key} is not a setting{suggest_key(key, {})}")
            continue
        usable.append(override)
    return usable


def _as_path(group: str, name: str) -> str:
    """Return a hint for a path or hub id that was given as an option of a group: how to write it.

    Empty for other names.
    """
    # a name without a slash may be a mistyped option, unless such a file exists
    if group not in ("model", "data") or not ("/" in name or Path(name).exists()):
        return ""
    if group == "model":
        return f"; a directory or hub id is written model=hf model.path={name}"
    kinds = "pairs, sft, prompts, unpaired or verifiable"
    return f"; a file or hub id is written data=KIND data.path={name}, where KIND is {kinds}"


def last_levels(overrides: Sequence[Override]) -> list[Override]:
    """Return the overrides with only the last one of each key that has a sweep. Hydra does so for plain values."""
    last = {override.key_or_group: override for override in overrides}
    swept = {override.key_or_group for override in overrides if override.is_sweep_override()}
    return [
        override
        for override in overrides
        if override is last[override.key_or_group] or override.key_or_group not in swept
    ]


def choice_words(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return overrides for the options and the recipe that a job of a sweep chooses."""
    return tuple(as_overrides({key: value for key, value in job.items() if is_choice(key)}))


def key_of(word: str) -> str:
    """Return the key of an override given as text."""
    return word.lstrip("+~").partition("=")[0]


def sweep_values(override: Override) -> list[Any]:
    """Return the values of an override: all levels of a sweep, or its only value."""
    if override.value_type == ValueType.SIMPLE_CHOICE_SWEEP or override.is_sweep_override():
        return list(override.sweep_iterator())
    return [override.value()]
