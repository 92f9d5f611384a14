"""Agents compared on the same tasks: several attempts at a task, and several tasks drawn from one template.

Attempts at a task are averaged first. Tasks of one template are easy or hard together, so the template is the
independent unit; where no two tasks share one, it is the task. With few units the p-value is exact: the differences of
units are as likely positive as negative where the agents do not differ.
Left out: unpaired comparisons, differences in the number of attempts (a task counts once however often it was tried).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, POWER, Comparison, format_estimate
from rlhf_lab.statistics.inference import holm, least_sd_of_outcomes, paired_difference
from rlhf_lab.statistics.paired_rates import Outcomes, paired_by_prompt

MOST_FLIPPED = 20
"""Most units whose 2^G signs are enumerated; the t test serves for more."""


@dataclass(frozen=True)
class AgentComparison:
    """Two agents on the same tasks.

    Attributes:
        first, second: their names; the difference is second − first.
        adjusted_p: p-value after Holm's adjustment over the family it was computed with.
        shared_tasks: tasks that both attempted.
    """

    first: str
    second: str
    comparison: Comparison
    adjusted_p: float
    shared_tasks: int

    @property
    def distinguishable(self) -> bool:
        """Whether the agents differ at the interval's level, all comparisons of the family considered."""
        return self.adjusted_p <= 1 - self.comparison.difference.level

    def describe(self) -> str:
        """A line with the difference, the evidence and what the tasks could have shown."""
        comparison = self.comparison
        detectable = comparison.minimum_detectable_effect
        found = f"{detectable:.3f}" if math.isfinite(detectable) else "no difference"
        return (
            f"{self.second} − {self.first}: {format_estimate(comparison.difference, digits=3)} on {self.shared_tasks} "
            f"tasks, p = {comparison.p_value:.3g} ({comparison.test}), Holm {self.adjusted_p:.3g}; "
            f"found with probability {comparison.power:g}: {found}"
        )


def compare_agents(
    outcomes: Mapping[str, Outcomes], template_of: Mapping[Any, Hashable], *, baseline: str | None = None
) -> list[AgentComparison]:
    """Every pair of agents, or each agent against one, as one family of tests.

    Args:
        outcomes: agent → task → its scored attempts.
        template_of: task → template; a task that is not in it is a unit of its own.
        baseline: the agent that the others are compared with; None compares all pairs.
    """
    if baseline is not None and baseline not in outcomes:
        raise NumericError(f"baseline {baseline!r} is no agent; agents are {', '.join(outcomes)}")
    names = list(outcomes)
    others = [name for name in names if name != baseline]
    pairs = list(combinations(names, 2)) if baseline is None else [(baseline, other) for other in others]
    comparisons = [paired_by_task(outcomes[first], outcomes[second], template_of) for first, second in pairs]
    adjusted = holm([comparison.p_value for comparison in comparisons])
    return [
        AgentComparison(first, second, comparison, p, comparison.difference.n)
        for (first, second), comparison, p in zip(pairs, comparisons, adjusted, strict=True)
    ]


def paired_by_task(a: Outcomes, b: Outcomes, template_of: Mapping[Any, Hashable]) -> Comparison:
    """Mean of `b` minus mean of `a` over the tasks that both attempted, each task with the same weight.

    One attempt of 0 or 1 per task and one task per template: exact McNemar, and the minimum detectable effect is the
    exact one. Otherwise the interval is clustered by template (CR1), and the p-value comes from all sign flips of the
    templates' sums, or from the t test where there are more than `MOST_FLIPPED` templates.
    """
    shared = [task for task in a if task in b and len(a[task]) and len(b[task])]
    units = [template_of.get(task, task) for task in shared]
    position = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
    a_T = np.array([np.mean(a[task]) for task in shared])
    b_T = np.array([np.mean(b[task]) for task in shared])
    unit_T = np.array([position[unit] for unit in units], dtype=int)
    is_binary = bool(np.isin([*a_T, *b_T], (0.0, 1.0)).all())
    is_constant = len(set(b_T - a_T)) == 1
    # agents that differ alike on every task of a few, or on none, need not do so on the next one
    least_sd_T = least_sd_of_outcomes(b_T, a_T) if is_binary and is_constant else None
    comparison = paired_difference(b_T, a_T, unit_T, least_sd_N=least_sd_T)
    if len(position) == len(shared):
        exact = paired_by_prompt({task: a[task] for task in shared}, {task: b[task] for task in shared})
        if "McNemar" in exact.test:
            comparison = dataclasses.replace(comparison, p_value=exact.p_value, test=exact.test)
            return _with_exact_effect(comparison, a, b, shared)
    if not 2 <= len(position) <= MOST_FLIPPED:
        return comparison
    sums_G = np.bincount(unit_T, weights=b_T - a_T).astype(np.float64)
    test = f"exact sign-flip test over {len(position)} templates"
    return dataclasses.replace(comparison, p_value=sign_flip_exact(sums_G), test=test)


def _with_exact_effect(comparison: Comparison, a: Outcomes, b: Outcomes, shared: list[Any]) -> Comparison:
    """The effect that exact McNemar finds while the rarer kind of discordance stays as frequent as observed."""
    only_a = sum(a[task][0] > b[task][0] for task in shared)
    only_b = sum(b[task][0] > a[task][0] for task in shared)
    effect = mcnemar_detectable(len(shared), loss=min(only_a, only_b) / len(shared))
    return dataclasses.replace(comparison, minimum_detectable_effect=effect)


def sign_flip_exact(differences_G: FloatArray) -> float:
    """Two-sided p-value of G independent differences: the share of all 2^G choices of their signs whose sum is as far
    from 0 (Fisher 1935, §21). Of differences that are −1, 0 or 1 it is the exact McNemar test.
    """
    if len(differences_G) > MOST_FLIPPED:
        raise NumericError(f"{len(differences_G)} differences have too many signs; at most {MOST_FLIPPED}")
    sums = np.zeros(1)
    for difference in differences_G:
        sums = np.concatenate([sums + difference, sums - difference])
    observed = abs(float(np.sum(differences_G)))
    # sums that are equal in exact arithmetic differ in the last digits
    slack = 1e-9 * max(1.0, float(np.abs(differences_G).sum()))
    return float(np.mean(np.abs(sums) >= observed - slack))


def mcnemar_power(n: int, gain: float, loss: float, *, alpha: float = 1 - LEVEL) -> float:
    """Probability that exact McNemar rejects on `n` tasks, by enumeration.

    Args:
        gain: probability that only the second agent solves a task.
        loss: probability that only the first does.

    Of n tasks d ~ Binomial(n, gain + loss) are discordant, and of these the first alone solves c ~ Binomial(d, loss /
    (gain + loss)). The test rejects where c or d − c is at most k_d, the largest k with 2·P(Binomial(d, ½) ≤ k) ≤ α.
    """
    discordant = gain + loss
    if n < 1 or gain < 0 or loss < 0 or discordant > 1 + 1e-12:
        raise NumericError(f"McNemar on n={n} tasks with gain={gain} and loss={loss}: shares of tasks, n ≥ 1")
    if discordant == 0:
        return 0.0
    d = np.arange(n + 1)
    critical = stats.binom.ppf(alpha / 2, d, 0.5)
    # ppf gives the least k with P(≤ k) ≥ α/2; the test rejects at k only where that is an equality
    critical = np.where(2 * stats.binom.cdf(critical, d, 0.5) <= alpha, critical, critical - 1)
    share = loss / discordant
    rejects = stats.binom.cdf(critical, d, share) + stats.binom.cdf(critical, d, 1 - share)
    return float(np.sum(stats.binom.pmf(d, n, min(1.0, discordant)) * rejects))


def mcnemar_detectable(n: int, loss: float = 0.0, *, power: float = POWER, alpha: float = 1 - LEVEL) -> float:
    """The least difference gain − loss that exact McNemar finds on `n` tasks with probability `power`; inf where none.

    The best case is `loss` = 0: the second agent solves whatever the first does.
    """
    most = 1.0 - loss
    if n < 1 or most <= loss or mcnemar_power(n, most, loss, alpha=alpha) < power:
        return math.inf
    gain = brentq(lambda gain: mcnemar_power(n, gain, loss, alpha=alpha) - power, loss, most)
    return float(gain) - loss


def least_discordant(alpha: float = 1 - LEVEL) -> int:
    """How many discordant tasks, all in favour of one agent, exact McNemar needs: 2·½^d ≤ α, six at .05."""
    return math.ceil(1 + math.log2(1 / alpha) - 1e-12)
