"""Which metrics of two runs only share a name: measured in different worlds, scored by different rewards, or measured
from different policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.reports.comparison.setting_changes import setting_changes
from rlhf_lab.results.rundir import TRUE_REWARD, Run

TRUTHS = ("gold", "correct", "success")
"""Metrics that the data measure: of two worlds they share a name and nothing else."""


@dataclass(frozen=True)
class Mismatch:
    """A reason why metrics are not compared.

    Attributes:
        remark: a sentence.
        metrics: what it affects; "reward" also stands for "reward/bt".
    """

    remark: str
    metrics: tuple[str, ...]

    def covers(self, metric: str) -> bool:
        return metric.partition("/")[0] in self.metrics


def refuse_two_worlds(a: Run, b: Run) -> None:
    """Raises DataError where both runs measured a truth, each in a world of its own."""
    shared = [name for name in TRUTHS if _measures_truth(a, name) and _measures_truth(b, name)]
    if shared and a.world and b.world and a.world != b.world:
        raise DataError(two_worlds_message((f"A ({a.path})", a.world), (f"B ({b.path})", b.world), shared))


def two_worlds_message(a: tuple[str, str], b: tuple[str, str], metrics: Sequence[str]) -> str:
    """Why two sides, each (name, world), are not compared."""
    (name_a, world_a), (name_b, world_b) = a, b
    return (
        f"{name_a} is measured on data={world_a}, {name_b} on data={world_b}: {' and '.join(metrics)} of the two are "
        "not one measure, so they are not compared; name two of the same data"
    )


def _measures_truth(run: Run, metric: str) -> bool:
    if metric == "gold":  # a reward model in needs.gold measures the same on any data
        return run.gold_source == TRUE_REWARD
    in_rows = metric in run.evaluation and bool(run.evaluation[metric].notna().any())
    return in_rows or any(metric in policy.metrics for policy in run.policies)


def mismatches(a: Run, b: Run) -> list[Mismatch]:
    """Metrics that mean another thing in B than in A, and why."""
    changes = [key for key, _, _ in setting_changes(a, b)]
    # The monitor watches a reward and does not change it.
    reward_changed = any(key.startswith("reward.") and not key.startswith("reward.monitor.") for key in changes)
    reasons = []
    if reward_changed or _needs_differ(a, b, "reward"):
        remark = "A and B are scored by different rewards: their proxy rewards are not on one scale and not tested."
        reasons.append(Mismatch(remark, _metrics_relative_to("reward")))
    if a.has_gold and b.has_gold and (a.gold_source != b.gold_source or _needs_differ(a, b, "gold")):
        remark = "A and B have different golds: gold and win rate are not on one scale and not tested."
        reasons.append(Mismatch(remark, _metrics_relative_to("gold")))
    for role, words in (("policy", "start from different policies"), ("reference", "have different references")):
        if _needs_differ(a, b, role):
            remark = f"A and B {words}: KL, win rate and drift are not measured from one policy and not tested."
            reasons.append(Mismatch(remark, _metrics_relative_to("reference")))
    return reasons


def _metrics_relative_to(anchor: Literal["reward", "reference", "gold"]) -> tuple[str, ...]:
    """Metrics whose values mean something beside one reward, reference policy or gold only."""
    return tuple(metric.name for metric in catalogue().values() if anchor in metric.relative_to)


def _needs_differ(a: Run, b: Run, role: str) -> bool:
    """Whether both need this role, and not the same one."""
    keys = [((run.manifest.get("needs") or {}).get(role) or {}).get("key") for run in (a, b)]
    return all(keys) and keys[0] != keys[1]
