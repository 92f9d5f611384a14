"""Candidates for shell completion of a command line: sub-commands, recipes, options of groups, keys, values.

Hydra installs the shell function (`-sc install=bash`, also zsh and fish). This module answers its queries, because
Hydra's own answers omit sub-commands, recipes in subdirectories and the allowed values of settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlhf_lab.cli import explain
from rlhf_lab.config import compose, inventory, registry
from rlhf_lab.core.errors import ConfigError

TAKES_SETTINGS = ("plan", "doctor", "audit", "explain", "demo")
"""Sub-commands that accept settings; the others accept files."""


def candidates(line: str, commands: Collection[str]) -> list[str]:
    """Return the words that can complete a command line; empty if file names are expected.

    Args:
        line: text typed so far, starting with the program.
        commands: names of the sub-commands.
    """
    words = line.split()
    if words[:1] == ["python"]:
        words = words[2:]  # drop `python -m`, so that the program comes first
    # After a space, or after the program alone, a new word starts.
    is_new_word = line.endswith(" ") or len(words) < 2
    typed = "" if is_new_word else words[-1]
    before = words[1 : len(words) - bool(typed)]
    if before and before[0] in commands and before[0] not in TAKES_SETTINGS:
        return []
    possible = _possible_words(typed, [word for word in before if "=" in word])
    if not before:  # a sub-command can only be the first word
        possible += commands
    return sorted({word for word in possible if word.startswith(typed)})


def _possible_words(typed: str, overrides: list[str]) -> list[str]:
    """Return the overrides that may complete a partly typed word: recipes, options of a group, values or keys."""
    key, equals, _ = typed.partition("=")
    name = key.lstrip("+~")
    if name == "recipe":
        return [f"+recipe={recipe}" for recipe in inventory.recipes()]
    if equals and name in registry.groups():
        return [f"{key}={option}" for option in inventory.options(name)]
    # Keys and values depend on the options chosen earlier on the line, e.g. on the algorithm.
    values = _compose_or_default(overrides)
    if equals:
        return [f"{key}={value}" for value in explain.choices(values, name)]
    if name.startswith("stages."):
        recipes = [recipe for recipe in inventory.recipes() if not recipe.startswith("study/")]
        return [f"stages.{name}." for name in (*recipes, "gold")]
    prefix = key[: len(key) - len(name)]
    groups = [f"{group}=" for group in registry.groups()]
    return ["+recipe=", *groups, *_keys(values, name, prefix)]


def _compose_or_default(overrides: list[str]) -> dict[str, Any]:
    """Return the settings chosen by the earlier words, or the defaults if these contain a mistake."""
    try:
        return compose.compose(overrides)
    except ConfigError:
        return compose.compose([])


def _keys(values: Mapping[str, Any], name: str, prefix: str) -> list[str]:
    """Return keys one level below the last dot of `name`: sections end in a dot, settings in an equals sign."""
    sections = name.split(".")[:-1]
    for section in sections:
        values = values.get(section) or {}
        if not isinstance(values, Mapping):
            return []
    start = prefix + "".join(f"{section}." for section in sections)
    keys = []
    for key, value in values.items():
        end = "." if isinstance(value, dict) else "="
        keys.append(f"{start}{key}{end}")
    return keys
