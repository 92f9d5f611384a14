"""Differences in the settings of two runs, or two studies: dotted keys, versions, code, machine, upstream stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.files import read_object
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.scales import user_code
from rlhf_lab.studies.frame import Study

ABSENT = "–"
"""Value of a setting that one side does not have."""
LEFT_OUT = ("model.tuned.", "study.", "outputs.", "question.")
"""Settings without effect on results: tuned values for other algorithms, output paths, and descriptions."""
FROM_MANIFEST = ("recipe", "git_sha", "versions", "machine")
"""Fields of manifest.json that are compared."""
FROM_PLAN = ("recipe", "compare", "baseline", "metrics", "size", "by")
"""Fields of study.json that are compared."""

Change = tuple[str, str, str]
"""(dotted key, value of A, value of B)"""


def setting_changes(a: StoredRun, b: StoredRun) -> list[Change]:
    """Return the settings of the resolved configs that differ: those of A in its order, then those only B has."""
    return _list_changes(_compared_settings(a), _compared_settings(b))


def origin_changes(a: StoredRun, b: StoredRun) -> list[Change]:
    """Return the differences in code, versions, machine, data and the stages that the runs start from."""
    changes = _list_changes(dict(_origin_settings(a.manifest)), dict(_origin_settings(b.manifest)))
    return [*changes, *user_code_changes(a, b)]


def user_code_changes(a: StoredRun, b: StoredRun) -> list[Change]:
    """Return the definitions in users' files and plug-ins that differ, as ("code.FILE.py:NAME", digest, digest)."""
    definitions = []
    for run in (a, b):
        own = user_code(run)
        if own is None:  # nothing is known about the code of this run
            return []
        definitions.append({f"code.{label}": digest for label, digest in own.items()})
    return _list_changes(*definitions)


def plan_changes(a: Study, b: Study) -> list[Change]:
    """Return the differences between the plans of two studies: fields, overrides of all jobs, and factor values."""
    return _list_changes(dict(_plan_settings(a)), dict(_plan_settings(b)))


def _plan_settings(study: Study) -> Iterator[tuple[str, str]]:
    plan = read_object(study.path / "study.json")
    yield from flatten({name: plan.get(name) for name in FROM_PLAN})
    for factor in study.factors:
        levels = dict.fromkeys(map(level_name, study.frame[factor]))  # without duplicates
        yield factor, ", ".join(levels)
    for override in plan.get("overrides") or ():
        key, _, value = str(override).partition("=")
        if key not in study.factors:
            yield key, value


def flatten(values: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as text) of nested mappings; a list counts as one value."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, "null" if values is None else level_name(values)


def _compared_settings(run: StoredRun) -> dict[str, str]:
    # The added dot lets "outputs." also match a key "outputs" with a single value.
    return {key: value for key, value in flatten(run.settings) if not f"{key}.".startswith(LEFT_OUT)}


def _origin_settings(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from flatten({name: manifest.get(name) for name in FROM_MANIFEST})
    for role, need in (manifest.get("needs") or {}).items():
        if isinstance(need, Mapping):
            names = [str(need[name]) for name in ("recipe", "key") if need.get(name)]
            yield f"needs.{role}", " ".join(names)
    data = manifest.get("data") or {}
    yield from flatten({name: data.get(name) for name in ("name", "fingerprint")}, "data")


def _list_changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    """Return the keys whose values differ, in the order of A, then those only B has."""
    return [(key, a.get(key, ABSENT), b.get(key, ABSENT)) for key in {**a, **b} if a.get(key) != b.get(key)]
