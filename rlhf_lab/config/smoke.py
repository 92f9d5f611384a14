"""`size=smoke`: a recipe and everything it starts from in minutes, for a first look at a model and its data.

The settings classes say how small (`smoke`, and `smoke_real` for models that are not made from scratch). These values
are put into a composed config between the recipe and the command line: they lower what a recipe says, and whatever the
command line or a study's sweep writes stays as written. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.overrides import merge
from rlhf_lab.config.root import with_tuned
from rlhf_lab.config.sections import Evaluation, Study

NOTICE = "smoke size: everything is as short as it can be, to see that it runs; its numbers mean nothing"
OWN, SHARED = ("algorithm", "evaluation"), ("data", "rollout")
"""Sections of every stage by itself, and those that the stages before a run take over from it."""


def sized(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Composed values as `values["size"]` wants them.

    Args:
        values: of the whole config, as composed.
        written: keys that the command line or a sweep names; what they say stays.
        recipe_values: recipe → its values as composed by itself; KeyError for what is no recipe.
    """
    found = dict(values)
    if found.get("size") != "smoke":
        return found
    for section in (*OWN, *SHARED):
        found[section] = _smaller(found, section, section, written)
    found["stages"] = _upstream(found, written, recipe_values)
    return found


def first_levels(study: Study, written: Collection[str]) -> dict[str, list[Any]]:
    """The sweep of a study at smoke size: the baseline and one other level, one seed; written keys as written."""
    sweep = {}
    for key, levels in study.sweep.items():
        others = [level for level in levels if level != study.baseline]
        few = [study.baseline, *others[:1]] if key == study.compare else levels[:1]
        sweep[key] = levels if key in written else [level for level in levels if level in few]
    return sweep


def _smaller(values: Mapping[str, Any], section: str, where: str, written: Collection[str]) -> dict[str, Any]:
    """A section with its settings lowered to smoke size; `where` is its dotted name on the command line."""
    current = values.get(section) or {}
    effective = with_tuned(values, [])[section] or {}
    small = {
        name: _lower(name, effective.get(name), limit)
        for name, limit in _limits(values, section).items()
        if not _is_written(f"{where}.{name}", written)
    }
    return {**current, **small}


def _limits(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Setting → its most at smoke size."""
    cls = Evaluation if section == "evaluation" else registry.settings_class(section, str(values[section].get("kind")))
    real = values["model"].get("kind") != "scratch"
    return {**getattr(cls, "smoke", {}), **(getattr(cls, "smoke_real", {}) if real else {})}


def _lower(name: str, value: Any, limit: Any) -> Any:
    """The smaller of both; a value that is None, or a `max_…` of 0, sets no limit itself."""
    if value is None or (value == 0 and name.startswith("max_")):
        return limit
    return min(value, limit)


def _is_written(key: str, written: Collection[str]) -> bool:
    """Whether the command line names a key, or gives a mapping above it; `algorithm=dpo` is a choice and gives none."""
    return any(key == name or (key.startswith(f"{name}.") and name not in registry.PACKAGES) for name in written)


def _upstream(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """`stages` with every recipe that the run starts from at smoke size."""
    stages: dict[str, Any] = dict(values.get("stages") or {})
    waiting, seen = list((values.get("needs") or {}).values()), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name is None:
            continue
        seen.add(name)
        try:
            recipe = merge(dict(recipe_values(name)), stages.get(name, {}))
        except KeyError:  # a folder or a hub id
            continue
        stage = {**recipe, "model": merge(dict(values["model"]), (stages.get(name) or {}).get("model", {}))}
        small: dict[str, Any] = {"size": "smoke"}
        for section in OWN:
            lowered = _smaller(stage, section, f"stages.{name}.{section}", written)
            small[section] = {key: lowered[key] for key in _limits(stage, section)}
        stages[name] = merge(stages.get(name, {}), small)
        waiting += (recipe.get("needs") or {}).values()
    return stages
