"""What two runs, or two studies, were told differently: settings as dotted keys, versions, code, machine, upstream."""

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
    return _changes(*(_kept(run) for run in (a, b)))


def origin_changes(a: Run, b: Run) -> list[Change]:
    """What differs in code, versions, machine, data and the stages that the runs start from."""
    return _changes(*(dict(_origin(run.manifest)) for run in (a, b)))


def plan_changes(a: Study, b: Study) -> list[Change]:
    """What differs in the plans of two studies: their fields, the overrides of all jobs, the values of each factor."""
    return _changes(*(dict(_plan(study)) for study in (a, b)))


def _plan(study: Study) -> Iterator[tuple[str, str]]:
    plan = read_json(study.path / "study.json", [])
    yield from flatten({name: plan.get(name) for name in FROM_PLAN})
    for factor in study.factors:
        yield factor, ", ".join(dict.fromkeys(map(level_name, study.frame[factor])))
    for key, _, value in (str(item).partition("=") for item in plan.get("overrides") or ()):
        if key not in study.factors:
            yield key, value


def flatten(values: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as text) of nested mappings; a list is one value."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, "null" if values is None else level_name(values)


def _kept(run: Run) -> dict[str, str]:
    return {key: value for key, value in flatten(parsed_config(run)) if not f"{key}.".startswith(LEFT_OUT)}


def parsed_config(run: Run) -> Any:
    """The settings of a run; empty when config.yaml is missing or damaged."""
    try:
        return yaml.safe_load(run.config) or {}
    except yaml.YAMLError:
        return {}


def _origin(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from flatten({name: manifest.get(name) for name in FROM_MANIFEST})
    for role, need in (manifest.get("needs") or {}).items():
        if isinstance(need, Mapping):
            yield f"needs.{role}", " ".join(str(need[part]) for part in ("recipe", "key") if need.get(part))
    data = manifest.get("data") or {}
    yield from flatten({name: data.get(name) for name in ("name", "fingerprint")}, "data")


def _changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    keys = [*a, *(key for key in b if key not in a)]
    return [(key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in keys if a.get(key) != b.get(key)]
