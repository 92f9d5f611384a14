"""Truth of a run for judging alarms afterwards: did the true reward fall below that of the start policy?

Both policies answer the same held-out prompts, so gold is compared prompt by prompt. With n prompts, d_p the difference
of prompt p (mean over its responses, policy − start), s the standard deviation of d_p and t the 95 % quantile of the t
distribution with n − 1 degrees of freedom:

    fell            mean(d) + t·s/√n < 0 did not fall    mean(d) − t·s/√n ≥ −MARGIN·(standard deviation of the start
    policy's gold between prompts) undecided       neither; the run counts neither for the detector nor against it

Each statement is false with a probability of at most 5 %. A fall within the margin can be significant; it is then a
fall. The last trained policy decides, also if `reward.audit.action=stop` replaces it by an earlier one. The fall is at
the first evaluated policy from which on all are significantly below the start. Gold may be above its start and below
its best value; the test of training samples in `gold_fall.py` looks for that, and it is used as the truth only where no
held-out responses are known, as in traces of other programs. It misses falls, so it never says that a run did not fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.monitoring.gold_fall import Fall

MARGIN = 0.2
"""Largest fall that does not count as a fall, in standard deviations of the start policy's gold: a small effect (Cohen
1988)."""
LEVEL = 0.05
"""Error probability of each of the two statements."""


@dataclass(frozen=True)
class GoldTruth:
    """Truth of a run.

    Attributes:
        fell: True if gold fell, False if it did not, None if undecided.
        fell_at: first recorded iteration whose responses come from a fallen policy; NaN unless gold fell.
        change: mean difference of gold, last policy − start; NaN if only training samples are known.
    """

    fell: bool | None
    fell_at: float = math.nan
    change: float = math.nan

    def to_metrics(self) -> dict[str, float]:
        """Return the metrics of the run; see metrics.py."""
        return {
            "gold_fell": math.nan if self.fell is None else float(self.fell),
            "gold_undecided": float(self.fell is None),
            "gold_fell_at": self.fell_at,
            "gold_change": self.change,
        }

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float | None]) -> GoldTruth | None:
        """Read the output of `to_metrics`, in which a result has null for NaN; None if the truth is not known."""
        if "gold_undecided" not in metrics:
            return None
        fell = metrics["gold_fell"]
        is_known = fell is not None and math.isfinite(fell)
        at, change = metrics["gold_fell_at"], metrics["gold_change"]
        return cls(
            fell=bool(fell) if is_known else None,
            fell_at=math.nan if at is None else at,
            change=math.nan if change is None else change,
        )


def heldout_truth(
    start: Sequence[Mapping[str, Any]], policies: Sequence[tuple[int, Sequence[Mapping[str, Any]]]]
) -> GoldTruth | None:
    """Return the truth of a run from its evaluations; None if gold is known for fewer than two prompts.

    Args:
        start: rows of evaluation.jsonl of the start policy: `prompt_id` and `gold`, which is null if unscored.
        policies: (number of iterations trained on, rows) of each evaluated policy, in ascending order.
    """
    start_gold = _gold_by_prompt(start)
    comparisons = []
    for iteration, rows in policies:
        gold = _gold_by_prompt(rows)
        shared = [prompt for prompt in start_gold if prompt in gold]
        start_P = np.array([start_gold[prompt] for prompt in shared])
        gold_P = np.array([gold[prompt] for prompt in shared])
        if len(shared) >= 2:  # a single prompt has no standard error
            comparisons.append((iteration, start_P, gold_P))
    if not comparisons:
        return None
    _, start_P, gold_P = comparisons[-1]
    fell = gold_fell(start_P, gold_P)
    fell_at = math.nan
    if fell:
        # backwards from the end: the fall began at the first evaluation after which gold stayed below the start
        for iteration, *golds in reversed(comparisons):
            if not gold_fell(*golds):
                break
            fell_at = float(iteration)
    return GoldTruth(fell, fell_at, float((gold_P - start_P).mean()))


def gold_fell(start_P: FloatArray, gold_P: FloatArray) -> bool | None:
    """Return True if gold fell, False if it did not, None if undecided.

    Args:
        start_P, gold_P: gold of two or more prompts under the start policy and under a later one.
    """
    change_P = gold_P - start_P
    error = float(change_P.std(ddof=1)) / math.sqrt(len(change_P))
    half_width = float(stats.t.ppf(1 - LEVEL, len(change_P) - 1)) * error
    mean = float(change_P.mean())
    if mean + half_width < 0:
        return True
    margin = MARGIN * float(start_P.std(ddof=1))
    return False if mean - half_width >= -margin else None


def truth_of_samples(fall: Fall | None) -> GoldTruth:
    """Return the truth of a trace without held-out responses: fallen from its best value, or undecided."""
    return GoldTruth(None) if fall is None else GoldTruth(True, fell_at=float(fall.fall))


def _gold_by_prompt(rows: Sequence[Mapping[str, Any]]) -> dict[Any, float]:
    """Return prompt → mean gold of its scored responses."""
    values: dict[Any, list[float]] = {}
    for row in rows:
        if row["gold"] is not None:
            values.setdefault(row["prompt_id"], []).append(row["gold"])
    return {prompt: float(np.mean(golds)) for prompt, golds in values.items()}
