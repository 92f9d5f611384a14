"""What can follow on a command line, for shell completion: sub-commands, recipes, options of groups, keys, values.

Hydra installs the shell function (`-sc install=bash`, also zsh and fish). It asks here, because Hydra's own answers
leave out sub-commands, recipes in folders and the values that a setting may have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlhf_lab.cli import explain
from rlhf_lab.config import compose, inventory, registry
from rlhf_lab.core.errors import ConfigError

TAKES_SETTINGS = ("plan", "doctor", "audit", "explain")
"""Sub-commands that take settings; the others take files."""


def candidates(line: str, commands: Collection[str]) -> list[str]:
    """Words that can complete a command line; none where file names are expected.

    Args:
        line: as typed so far, the program first.
        commands: names of the sub-commands.
    """
    words = line.split()
    if words[:1] == ["python"]:
        words = words[2:]  # drop `python -m`, so that the program comes first
    typed = "" if line.endswith(" ") or len(words) < 2 else words[-1]
    before = words[1 : len(words) - bool(typed)]
    if before and before[0] in commands and before[0] not in TAKES_SETTINGS:
        return []
    possible = _possible_words(typed, [word for word in before if "=" in word])
    if not before:  # a sub-command can only be the first word
        possible += commands
    return sorted({word for word in possible if word.startswith(typed)})


def _possible_words(typed: str, overrides: list[str]) -> list[str]:
    """Overrides of the kind that the typed part begins: a recipe, an option of a group, a value, or a key."""
    key, equals, _ = typed.partition("=")
    name = key.lstrip("+~")
    if name == "recipe":
        return [f"+recipe={recipe}" for recipe in inventory.recipes()]
    if equals and name in registry.groups():
        return [f"{key}={option}" for option in inventory.options(name)]
    values = _compose_or_default(overrides)
    if equals:
        return [f"{key}={value}" for value in explain.choices(values, name)]
    if name.startswith("stages."):
        recipes = [recipe for recipe in inventory.recipes() if not recipe.startswith("study/")]
        return [f"stages.{name}." for name in (*recipes, "gold")]
    prefix = key[: len(key) - len(name)]
    return ["+recipe=", *(f"{group}=" for group in registry.groups()), *_keys(values, name, prefix)]


def _compose_or_default(overrides: list[str]) -> dict[str, Any]:
    """The settings that the words before choose, or the defaults where those words have a mistake."""
    try:
        return compose.compose(overrides)
    except ConfigError:
        return compose.compose([])


def _keys(values: Mapping[str, Any], name: str, prefix: str) -> list[str]:
    """Keys one level below the last dot of `name`: sections end in a dot, settings in an equals sign."""
    sections = name.split(".")[:-1]
    for section in sections:
        values = values.get(section) or {}
        if not isinstance(values, Mapping):
            return []
    start = prefix + "".join(f"{section}." for section in sections)
    return [f"{start}{key}." if isinstance(value, dict) else f"{start}{key}=" for key, value in values.items()]
