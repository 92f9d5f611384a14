"""`size=smoke`: a recipe with all its upstream recipes in minutes, for a first test of a model and its data.

The settings classes define the limits (`smoke`, and `smoke_real` for models not trained from scratch). The limits are
applied to a composed config between the recipe and the command line: they reduce the values of a recipe, but not those
of the command line or of a study's sweep. Does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.overrides import merge
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.config.tuned import with_tuned
from rlhf_lab.core.capabilities import Capability

NOTICE = "smoke size: everything is as short as possible, only to test that it runs; its numbers mean nothing"
SMOKE_TRIALS, SMOKE_SEEDS = 3, 2
"""Maximum numbers of trials of a search, and of seeds of its confirmation."""
STAGE_SECTIONS = ("algorithm", "evaluation")
"""Sections that differ between the stages of a run; each stage has its own."""
SHARED_SECTIONS = ("data", "rollout")
"""Sections that upstream stages take from the run."""


def sized(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return composed values scaled to `values["size"]`.

    Args:
        values: composed values of the entire config.
        written: keys set by the command line or a sweep; their values are not changed.
        recipe_values: function that returns a recipe's values composed alone; raises KeyError if there is no such
            recipe.
    """
    result = dict(values)
    if result.get("size") != "smoke":
        return result
    for section in (*STAGE_SECTIONS, *SHARED_SECTIONS):
        result[section] = _shrink_section(result, section, section, written)
    result["mixture"] = _shrink_mixture(result.get("mixture") or {}, "mixture", written)
    result["stages"] = _shrink_upstream(result, written, recipe_values)
    return result


def first_levels(study: StudySettings, written: Collection[str]) -> dict[str, list[Any]]:
    """Return the sweep of a study at smoke size: the baseline, one other level, one seed.

    Keys in `written` keep all their levels.
    """
    sweep = {}
    for key, levels in study.sweep.items():
        if key in written:
            sweep[key] = levels
            continue
        if key == "mixture.rows" or key.endswith(".mixture.rows"):
            sweep[key] = [0]  # 0 means all rows: corpora of this size are smaller than any swept number of rows
            continue
        others = [level for level in levels if level != study.baseline]
        chosen = [study.baseline, *others[:1]] if key == study.compare else levels[:1]
        sweep[key] = [level for level in levels if level in chosen]  # in the recipe's order
    return sweep


def short_search(study: StudySettings, written: Collection[str]) -> StudySettings:
    """Return a study with a search of few trials and seeds, for smoke size; keys in `written` keep their values."""
    trials = study.trials if "study.trials" in written else min(study.trials, SMOKE_TRIALS)
    seeds = study.confirm_seeds if "study.confirm_seeds" in written else min(study.confirm_seeds, SMOKE_SEEDS)
    return replace(study, trials=trials, confirm_seeds=seeds)


def _shrink_section(values: Mapping[str, Any], section: str, where: str, written: Collection[str]) -> dict[str, Any]:
    """Return a section with its settings at smoke size. `where` is its dotted name on the command line."""
    current = values.get(section) or {}
    # A setting that depends on the model has a value only after `with_tuned`.
    effective = with_tuned(values, [])[section] or {}
    lowered = {
        name: _lower(name, effective.get(name), limit)
        for name, limit in _limits(values, section).items()
        if not _is_written(f"{where}.{name}", written)
    }
    # pass@k needs at least k samples, so larger values of k are dropped together with the samples.
    if section == "evaluation" and current.get("pass_at") and not _is_written(f"{where}.pass_at", written):
        samples = lowered.get("samples_per_prompt", current.get("samples_per_prompt"))
        lowered["pass_at"] = [k for k in current["pass_at"] if k <= samples]
    return {**current, **lowered}


def _shrink_mixture(mixture: Mapping[str, Any], where: str, written: Collection[str]) -> dict[str, Any]:
    """Return a mixture of small corpora: all their rows, because a recipe may request more rows than they have."""
    if not mixture.get("rows") or _is_written(f"{where}.rows", written):
        return dict(mixture)
    return {**mixture, "rows": 0}


def _limits(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return setting → its maximum at smoke size."""
    if section in registry.groups():
        cls: Any = registry.settings_class(section, str(values[section].get("kind")))
    else:
        cls = registry.sections()[section].cls
    pretrained = values["model"].get("kind") != "scratch"
    limits = dict(cls.by_size.smoke)
    if pretrained:
        limits |= cls.by_size.smoke_real
    data_class: Any = registry.settings_class("data", str(values["data"].get("kind")))
    # A user's environment need not have demonstrations.
    if Capability.DEMONSTRATIONS not in data_class.provides:
        limits.pop("demonstrate", None)
    return limits


def _lower(name: str, value: Any, limit: Any) -> Any:
    """Return the smaller of value and limit.

    The limit replaces None, and 0 in a `max_…` setting, which mean unlimited. A limit that is true or false replaces
    the value.
    """
    is_unlimited = value is None or (value == 0 and name.startswith("max_"))
    if is_unlimited or isinstance(limit, bool):
        return limit
    return min(value, limit)


def _is_written(key: str, written: Collection[str]) -> bool:
    """Return True if the command line sets a key or a mapping above it. `algorithm=dpo` only chooses an option."""
    for name in written:
        is_mapping_above = key.startswith(f"{name}.") and name not in registry.groups()
        if key == name or is_mapping_above:
            return True
    return False


def _shrink_upstream(
    values: Mapping[str, Any], written: Collection[str], recipe_values: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the values of `stages`, with settings that reduce every upstream recipe of the run to smoke size."""
    stages: dict[str, Any] = values.get("stages") or {}
    if not isinstance(stages, dict) or not all(isinstance(settings, dict) for settings in stages.values()):
        return stages  # the check of the run explains it
    stages = dict(stages)
    # Walk through all upstream recipes, each once.
    pending = list((values.get("needs") or {}).values())
    seen = set()
    while pending:
        name = pending.pop()
        if name in seen or name is None:
            continue
        seen.add(name)
        own = stages.get(name) or {}
        if not all(isinstance(own.get(section, {}), dict) for section in (*STAGE_SECTIONS, "model", "data", "mixture")):
            continue  # the check of the stage explains `stages.sft.model=small`
        try:
            recipe = merge(dict(recipe_values(name)), stages.get(name, {}))
        except KeyError:  # a directory or a hub id
            continue
        # An upstream stage has the run's model and data, unless `stages` sets its own.
        stage_model = (stages.get(name) or {}).get("model", {})
        stage_data = (stages.get(name) or {}).get("data") or {}
        has_own_data = "kind" in stage_data
        data = recipe["data"] if has_own_data else values["data"]
        stage = {**recipe, "model": merge(dict(values["model"]), stage_model), "data": data}
        overrides: dict[str, Any] = {"size": "smoke"}
        for section in (*STAGE_SECTIONS, *(["data"] if has_own_data else [])):
            shrunk = _shrink_section(stage, section, f"stages.{name}.{section}", written)
            changed = [*_limits(stage, section)]
            if section == "evaluation":
                changed.append("pass_at")  # it has no limit of its own but follows the number of samples
            overrides[section] = {key: shrunk[key] for key in changed if key in shrunk}
        mixture = recipe.get("mixture") or {}
        shrunk_mixture = _shrink_mixture(mixture, f"stages.{name}.mixture", written)
        if shrunk_mixture != mixture:
            overrides["mixture"] = shrunk_mixture
        stages[name] = merge(stages.get(name, {}), overrides)
        pending += (recipe.get("needs") or {}).values()
    return stages
