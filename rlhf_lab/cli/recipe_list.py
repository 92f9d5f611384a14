"""The list of recipes: grouped by what they are for, with the time that their comments state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from rlhf_lab.config import inventory, registry
from rlhf_lab.core.console import console

POLICY = "Train a policy"
REWARD = "Train a reward model"
MEASURE = "Measure a policy, a reward or an agent"
DATA = "Make or choose training data"
STUDY = "Studies: settings × seeds, with a table, a figure and verdicts"
GROUPS = (POLICY, REWARD, MEASURE, DATA, STUDY)
START_HERE = ("dpo_iterative", "reward_model", "attack", "curate", "study/kl_control")
"""The first recipe to try of each group."""
NUMBERS = {"a": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NUMBERS |= {"twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60}


class Cost(NamedTuple):
    """Minutes of a recipe on 2 cores, upstream stages included; `quick` are those of a study at study.size=quick."""

    minutes: int
    quick: int | None

    def __str__(self) -> str:
        return f"{self.minutes} min" + (f", quick {self.quick}" if self.quick else "")


def header(text: str) -> dict[str, str]:
    """Return field → text of the comment at the start of a recipe. A line without a field continues the one before."""
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        match = re.match(r"# (\w+): +(.*)", line)
        if match:
            name = match[1].lower()
        fields[name] = f"{fields.get(name, '')} {match[2] if match else line[1:].strip()}".strip()
    return fields


def cost_of(fields: Mapping[str, str]) -> Cost | None:
    """Return the cost that the comment of a recipe states; None for a recipe whose comment states none."""
    stated = fields.get("cost", "")
    minutes = re.match(r"about ([\w-]+) minutes?", stated)
    quick = re.search(r"study\.size=quick:? (?:about )?(\w+)", stated)
    if not minutes:
        return None
    return Cost(_number(minutes[1]), _number(quick[1]) if quick else None)


def _number(words: str) -> int:
    """Return a number that is written in digits or in words: thirty-five → 35."""
    if words.isdigit():
        return int(words)
    return sum(NUMBERS[word] for word in words.split("-"))


def group_of(name: str) -> str:
    """Return the group of a recipe, one of GROUPS, by what its algorithm produces."""
    if name.startswith("study/"):
        return STUDY
    kind = _algorithm(name)
    settings: Any = registry.settings_class("algorithm", kind)
    module = registry.implementation("algorithm", kind)
    if settings.outputs.rows or ".pair_selection." in module:
        return DATA
    if settings.resources.adds_head or ".reward_models." in module:
        return REWARD
    trains_policy = settings.outputs.model or settings.reward_use.trains_policy
    return POLICY if trains_policy else MEASURE


def _algorithm(name: str) -> str:
    """Return the kind of algorithm of a recipe: its own choice, that of the recipe it extends, or the default."""
    option = _default_algorithm()
    for entry in inventory.read_yaml(inventory.recipes()[name]).get("defaults", []):
        if isinstance(entry, str) and entry.startswith("/recipe/"):
            return _algorithm(entry.removeprefix("/recipe/"))
        if isinstance(entry, dict) and "override /algorithm" in entry:
            option = str(entry["override /algorithm"])
    return str(inventory.written_values("algorithm", option)["kind"])


@cache
def _default_algorithm() -> str:
    """Return the default option of `algorithm`, which conf/config.yaml names."""
    defaults = inventory.read_yaml(inventory.directory("conf") / "config.yaml")["defaults"]
    return next(str(entry["algorithm"]) for entry in defaults if "algorithm" in entry)


def grouped() -> dict[str, dict[str, Path]]:
    """Return group → name → file of its recipes, in the order of GROUPS."""
    groups: dict[str, dict[str, Path]] = {group: {} for group in GROUPS}
    for name, path in inventory.recipes().items():
        groups[group_of(name)][name] = path
    return groups


def print_recipes(commands: Sequence[str]) -> None:
    """Print all recipes with their question and time, by group, then the sub-commands.

    Args:
        commands: one line per sub-command with its arguments and purpose.
    """
    introduction = "Recipes: python -m rlhf_lab +recipe=NAME. Times are on 2 cores, with all that a recipe needs."
    console.print(introduction, soft_wrap=False)
    for group, recipes in grouped().items():
        table = Table(title=group, title_style="bold", title_justify="left", box=None, show_header=False)
        table.add_column("name", style="bold", no_wrap=True)
        table.add_column("minutes", justify="right", no_wrap=True)
        table.add_column("question")
        for name, path in recipes.items():
            cost = cost_of(header(path.read_text(encoding="utf-8")))
            minutes = "" if cost is None else f"{cost.minutes} min"
            question = str(inventory.read_yaml(path).get("question", ""))
            table.add_row(name, minutes, f"start here: {question}" if name in START_HERE else question)
        console.print()
        console.print(table)
    heading = "\nOther commands (NAME --help prints details; --help alone lists every group and option):"
    console.print(heading, soft_wrap=False)
    for line in commands:
        console.print(f"  {line}")
