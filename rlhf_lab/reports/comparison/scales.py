"""Differences of two runs: settings, versions, code, machine, stages, and metrics that only share a name.

Such metrics are measured in different worlds, scored by different rewards, or measured from different policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.results.rundir import TRUE_REWARD, StoredRun
from rlhf_lab.results.scales import OBSERVERS, reward_inputs, runs_user_reward, user_code
from rlhf_lab.training.settings import SOUP

ABSENT = "–"
"""Value of a setting that one side does not have."""
LEFT_OUT = ("model.tuned.", "study.", "outputs.", "question.")
"""Settings without effect on results: tuned values for other algorithms, output paths, and descriptions."""
FROM_MANIFEST = ("recipe", "git_sha", "versions", "machine")
"""Fields of manifest.json that are compared."""

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


TRUTHS = ("gold", "correct", "success")
"""Metrics whose meaning depends on the data: values of two simulated worlds have one name and cannot be compared."""


@dataclass(frozen=True)
class Mismatch:
    """Reason why metrics are not compared.

    Attributes:
        metrics: affected metrics; "reward" also covers "reward/bt".
    """

    remark: str
    metrics: tuple[str, ...]

    def covers(self, metric: str) -> bool:
        return metric.partition("/")[0] in self.metrics


def refuse_two_worlds(a: StoredRun, b: StoredRun) -> None:
    """Raise DataError if both runs measured gold, or another metric of `TRUTHS`, in different worlds."""
    shared = [name for name in TRUTHS if _measures_truth(a, name) and _measures_truth(b, name)]
    if shared and a.world and b.world and a.world != b.world:
        raise DataError(
            f"A ({a.path}) is measured on data={a.world}, B ({b.path}) on data={b.world}, so their "
            f"{' and '.join(shared)} cannot be compared; choose two with the same data"
        )


def _measures_truth(run: StoredRun, metric: str) -> bool:
    """Return True if a run measured a metric of `TRUTHS` in the world of its data."""
    if metric == "gold":  # a reward model in needs.gold gives the same scores on any data
        return run.gold_source == TRUE_REWARD
    in_rows = metric in run.evaluation and bool(run.evaluation[metric].notna().any())
    return in_rows or any(metric in policy.metrics for policy in run.policies)


def mismatches(a: StoredRun, b: StoredRun) -> list[Mismatch]:
    """Return the metrics with another meaning in B than in A, with reasons."""
    changes = [key for key, _, _ in setting_changes(a, b)]
    observers = tuple(f"reward.{name}." for name in OBSERVERS)
    reward_changed = any(key.startswith("reward.") and not key.startswith(observers) for key in changes)
    reasons = []
    function_changed = runs_user_reward(a) and bool(user_code_changes(a, b))
    models_a, models_b = reward_inputs(a), reward_inputs(b)
    models_changed = any(models_a[role] != models_b[role] for role in models_a.keys() & models_b.keys())
    if reward_changed or function_changed or models_changed:
        note = "A and B are scored by different rewards: their proxy rewards have different scales and are not tested."
        # without gold, the reward decides wins
        wins = () if a.has_gold and b.has_gold else _metrics_relative_to("gold")
        reasons.append(Mismatch(note, (*_metrics_relative_to("reward"), *wins)))
    if a.has_gold and b.has_gold and (a.gold_source != b.gold_source or _needs_differ(a, b, "gold")):
        note = "A and B have different sources of gold: gold and win rate have different scales and are not tested."
        reasons.append(Mismatch(note, _metrics_relative_to("gold")))
    for role, words in (
        ("policy", "start from different policies"),
        ("reference", "have different references"),
        (SOUP, "have different references"),
    ):
        if _needs_differ(a, b, role):
            note = f"A and B {words}: KL, win rate and drift are relative to different policies and are not tested."
            reasons.append(Mismatch(note, _metrics_relative_to("reference")))
    return reasons


def _metrics_relative_to(anchor: Literal["reward", "reference", "gold"]) -> tuple[str, ...]:
    """Return metrics that are only meaningful relative to one reward, reference policy or source of gold."""
    return tuple(metric.name for metric in catalogue().values() if anchor in metric.relative_to)


def _needs_differ(a: StoredRun, b: StoredRun, role: str) -> bool:
    """Return True if the runs have different artefacts in a role of `needs`.

    A role that only one run has counts only for a soup.
    """
    keys = [((run.manifest.get("needs") or {}).get(role) or {}).get("key") for run in (a, b)]
    return keys[0] != keys[1] and (all(keys) or role == SOUP)
