"""How the settings of two runs, or two studies, differ: dotted keys, versions, code, machine, upstream stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from rlhf_lab.config.overrides import level_name
from rlhf_lab.results.rundir import Run, read_json
from rlhf_lab.studies.frame import Study

ABSENT = "–"
LEFT_OUT = ("model.tuned.", "study.", "outputs.", "question.")
"""Settings that decide nothing: what the model would name for other algorithms, where results go, words."""
FROM_MANIFEST = ("recipe", "git_sha", "versions", "machine")
FROM_PLAN = ("recipe", "compare", "baseline", "metrics", "size", "by")

Change = tuple[str, str, str]
"""(dotted key, value of A, value of B)"""


def setting_changes(a: Run, b: Run) -> list[Change]:
    """Settings of the resolved configs that differ, in A's order, then those only B has."""
    return _list_changes(_compared_settings(a), _compared_settings(b))


def origin_changes(a: Run, b: Run) -> list[Change]:
    """What differs in code, versions, machine, data and the stages that the runs start from."""
    return _list_changes(dict(_origin_settings(a.manifest)), dict(_origin_settings(b.manifest)))


def plan_changes(a: Study, b: Study) -> list[Change]:
    """What differs in the plans of two studies: their fields, the overrides of all jobs, the values of each factor."""
    return _list_changes(dict(_plan_settings(a)), dict(_plan_settings(b)))


def _plan_settings(study: Study) -> Iterator[tuple[str, str]]:
    plan = read_json(study.path / "study.json", [])
    yield from flatten({name: plan.get(name) for name in FROM_PLAN})
    for factor in study.factors:
        yield factor, ", ".join(dict.fromkeys(map(level_name, study.frame[factor])))
    for override in plan.get("overrides") or ():
        key, _, value = str(override).partition("=")
        if key not in study.factors:
            yield key, value


def flatten(values: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as text) of nested mappings; a list is one value."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, "null" if values is None else level_name(values)


def _compared_settings(run: Run) -> dict[str, str]:
    # The added dot lets "outputs." also match a key "outputs" with a single value.
    return {key: value for key, value in flatten(parsed_config(run)) if not f"{key}.".startswith(LEFT_OUT)}


def parsed_config(run: Run) -> Any:
    """The settings of a run; empty when config.yaml is missing or damaged."""
    try:
        return yaml.safe_load(run.config) or {}
    except yaml.YAMLError:
        return {}


def _origin_settings(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from flatten({name: manifest.get(name) for name in FROM_MANIFEST})
    for role, need in (manifest.get("needs") or {}).items():
        if isinstance(need, Mapping):
            yield f"needs.{role}", " ".join(str(need[name]) for name in ("recipe", "key") if need.get(name))
    data = manifest.get("data") or {}
    yield from flatten({name: data.get(name) for name in ("name", "fingerprint")}, "data")


def _list_changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    keys = [*a, *(key for key in b if key not in a)]
    return [(key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in keys if a.get(key) != b.get(key)]
