"""Detection of metrics of two runs that only share a name: measured in different worlds, scored by different rewards,
or measured from different policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.reports.comparison.setting_changes import setting_changes, user_code_changes
from rlhf_lab.results.rundir import TRUE_REWARD, StoredRun
from rlhf_lab.results.scales import OBSERVERS, reward_inputs, runs_user_reward
from rlhf_lab.training.settings import SOUP

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
        raise DataError(two_worlds_message((f"A ({a.path})", a.world), (f"B ({b.path})", b.world), shared))


def two_worlds_message(a: tuple[str, str], b: tuple[str, str], metrics: Sequence[str]) -> str:
    """Return the error message for two sides, each (name, world), whose worlds differ."""
    (name_a, world_a), (name_b, world_b) = a, b
    return (
        f"{name_a} is measured on data={world_a}, {name_b} on data={world_b}, so their {' and '.join(metrics)} cannot "
        "be compared; choose two with the same data"
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
