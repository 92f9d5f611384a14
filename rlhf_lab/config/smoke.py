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
from rlhf_lab.config.study_settings import Study
from rlhf_lab.config.tuned import with_tuned
from rlhf_lab.core.capabilities import Capability

NOTICE = "smoke size: everything is as short as it can be, to see that it runs; its numbers mean nothing"
STAGE_SECTIONS = ("algorithm", "evaluation")
"""Sections that each stage of a run has for itself."""
SHARED_SECTIONS = ("data", "rollout")
"""Sections that the stages before a run take over from it."""


def sized(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Composed values as `values["size"]` wants them.

    Args:
        values: of the whole config, as composed.
        written: keys that the command line or a sweep names; what they say stays.
        recipe_values: recipe → its values as composed by itself; KeyError for what is no recipe.
    """
    result = dict(values)
    if result.get("size") != "smoke":
        return result
    for section in (*STAGE_SECTIONS, *SHARED_SECTIONS):
        result[section] = _shrink_section(result, section, section, written)
    result["mixture"] = _shrink_mixture(result.get("mixture") or {}, "mixture", written)
    result["stages"] = _shrink_upstream(result, written, recipe_values)
    return result


def first_levels(study: Study, written: Collection[str]) -> dict[str, list[Any]]:
    """The sweep of a study at smoke size: the baseline and one other level, one seed; written keys as written."""
    sweep = {}
    for key, levels in study.sweep.items():
        if key in written:
            sweep[key] = levels
            continue
        if key == "mixture.rows" or key.endswith(".mixture.rows"):
            sweep[key] = [0]  # as many as there are: corpora of this size are smaller than any volume that is swept
            continue
        others = [level for level in levels if level != study.baseline]
        chosen = [study.baseline, *others[:1]] if key == study.compare else levels[:1]
        sweep[key] = [level for level in levels if level in chosen]  # in the recipe's order
    return sweep


def _shrink_section(values: Mapping[str, Any], section: str, where: str, written: Collection[str]) -> dict[str, Any]:
    """A section with its settings at smoke size; `where` is its dotted name on the command line."""
    current = values.get(section) or {}
    effective = with_tuned(values, [])[section] or {}  # a setting left to the model has a value only here
    lowered = {
        name: _lower(name, effective.get(name), limit)
        for name, limit in _limits(values, section).items()
        if not _is_written(f"{where}.{name}", written)
    }
    if section == "evaluation" and current.get("pass_at") and not _is_written(f"{where}.pass_at", written):
        samples = lowered.get("samples_per_prompt", current.get("samples_per_prompt"))
        lowered["pass_at"] = [k for k in current["pass_at"] if k <= samples]
    return {**current, **lowered}


def _shrink_mixture(mixture: Mapping[str, Any], where: str, written: Collection[str]) -> dict[str, Any]:
    """A mixture of corpora that are small: as many rows as they allow, where the recipe counts more than they have."""
    if not mixture.get("rows") or _is_written(f"{where}.rows", written):
        return dict(mixture)
    return {**mixture, "rows": 0}


def _limits(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Setting → the largest value it has at smoke size."""
    if section in registry.groups():
        cls: Any = registry.settings_class(section, str(values[section].get("kind")))
    else:
        cls = registry.sections()[section].cls
    pretrained = values["model"].get("kind") != "scratch"
    limits = {**getattr(cls, "smoke", {}), **(getattr(cls, "smoke_real", {}) if pretrained else {})}
    data_class: Any = registry.settings_class("data", str(values["data"].get("kind")))
    if (
        Capability.DEMONSTRATIONS not in data_class.provides
    ):  # an environment of the user, which need not know how its tasks are done
        limits.pop("demonstrate", None)
    return limits


def _lower(name: str, value: Any, limit: Any) -> Any:
    """The smaller of value and limit. None, and 0 in a `max_…` setting, mean unlimited and give the limit; so does a
    switch, which smoke size turns on or off."""
    if value is None or isinstance(limit, bool) or (value == 0 and name.startswith("max_")):
        return limit
    return min(value, limit)


def _is_written(key: str, written: Collection[str]) -> bool:
    """Whether the command line sets a key, or a mapping above it. `algorithm=dpo` chooses an option and sets none."""
    return any(key == name or (key.startswith(f"{name}.") and name not in registry.groups()) for name in written)


def _shrink_upstream(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """`stages` with every recipe that the run starts from at smoke size."""
    stages: dict[str, Any] = dict(values.get("stages") or {})
    pending = list((values.get("needs") or {}).values())
    seen = set()
    while pending:
        name = pending.pop()
        if name in seen or name is None:
            continue
        seen.add(name)
        try:
            recipe = merge(dict(recipe_values(name)), stages.get(name, {}))
        except KeyError:  # a folder or a hub id
            continue
        stage_model = (stages.get(name) or {}).get("model", {})
        has_own_data = "kind" in ((stages.get(name) or {}).get("data") or {})
        data = recipe["data"] if has_own_data else values["data"]
        stage = {**recipe, "model": merge(dict(values["model"]), stage_model), "data": data}
        overrides: dict[str, Any] = {"size": "smoke"}
        for section in (*STAGE_SECTIONS, *(["data"] if has_own_data else [])):
            shrunk = _shrink_section(stage, section, f"stages.{name}.{section}", written)
            changed = (*_limits(stage, section), *(["pass_at"] if section == "evaluation" else []))
            overrides[section] = {key: shrunk[key] for key in changed if key in shrunk}
        mixture = recipe.get("mixture") or {}
        shrunk_mixture = _shrink_mixture(mixture, f"stages.{name}.mixture", written)
        if shrunk_mixture != mixture:
            overrides["mixture"] = shrunk_mixture
        stages[name] = merge(stages.get(name, {}), overrides)
        pending += (recipe.get("needs") or {}).values()
    return stages
