"""Comparison of agents on the same tasks, with several attempts per task and several tasks per template.

Attempts at a task are averaged first. Tasks of one template tend to be easy or hard together, so the template is the
independent unit; if no two tasks share a template, the task is. With few units the p-value is exact: if the agents do
not differ, the difference of each unit is as likely positive as negative.

Not implemented: unpaired comparisons, and weights for the number of attempts (every task has the same weight).
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
from rlhf_lab.statistics.estimates import LEVEL, POWER, Comparison
from rlhf_lab.statistics.inference import at_level, holm, min_sd_of_outcomes, paired_difference
from rlhf_lab.statistics.paired_rates import Outcomes, paired_by_prompt, shared_means

MOST_FLIPPED = 20
"""Maximum number of units whose 2^G sign combinations are enumerated; with more units the t test is used."""


@dataclass(frozen=True)
class AgentComparison:
    """Comparison of two agents on the same tasks, second − first, with its p-value after Holm's adjustment."""

    first: str
    second: str
    comparison: Comparison
    adjusted_p: float


def compare_agents(outcomes: Mapping[str, Outcomes], template_of: Mapping[Any, Hashable]) -> list[AgentComparison]:
    """Compare every pair of agents, as one family of tests; a task without a template is a unit of its own.

    The minimum detectable effects are those at the strictest level of Holm's adjustment, 5 % over the number of pairs.
    """
    pairs = list(combinations(outcomes, 2))
    alpha = (1 - LEVEL) / max(1, len(pairs))
    comparisons = [
        paired_by_task(outcomes[first], outcomes[second], template_of, alpha=alpha) for first, second in pairs
    ]
    adjusted = holm([comparison.p_value for comparison in comparisons])
    family = zip(pairs, comparisons, adjusted, strict=True)
    return [AgentComparison(*pair, comparison, p_holm) for pair, comparison, p_holm in family]


def paired_by_task(
    a: Outcomes, b: Outcomes, template_of: Mapping[Any, Hashable], *, alpha: float = 1 - LEVEL
) -> Comparison:
    """Return the mean of `b` minus the mean of `a` over the tasks that both attempted, with equal weight per task.

    With one 0/1 attempt per task and one task per template, the test is exact McNemar, and the minimum detectable
    effect is the exact one. Otherwise the interval is clustered by template (CR1). The p-value then comes from all
    sign flips of the templates' sums, or from the t test if there are more than `MOST_FLIPPED` templates.

    Args:
        a, b: task → attempts.
        template_of: task → template.
        alpha: level of the test that the minimum detectable effect refers to.
    """
    shared, a_T, b_T, unit_T = shared_means(a, b, template_of)
    templates = len(np.unique(unit_T))
    is_binary = bool(np.isin([*a_T, *b_T], (0.0, 1.0)).all())
    is_constant = len(set(b_T - a_T)) == 1
    # If all of a few differences are equal, their standard deviation is 0, but the next task may well differ.
    min_sd_T = min_sd_of_outcomes(b_T, a_T) if is_binary and is_constant else None
    comparison = at_level(paired_difference(b_T, a_T, unit_T, min_sd_N=min_sd_T), alpha)
    if templates == len(shared):  # the tasks are independent pairs
        exact = paired_by_prompt(a, b)
        if "McNemar" in exact.test:
            comparison = dataclasses.replace(comparison, p_value=exact.p_value, test=exact.test)
            return _with_exact_effect(comparison, a, b, shared, alpha)
    if not 2 <= templates <= MOST_FLIPPED:
        return comparison
    sums_G = np.bincount(unit_T, weights=b_T - a_T).astype(np.float64)
    test = f"exact sign-flip test over {templates} templates"
    return dataclasses.replace(comparison, p_value=sign_flip_exact(sums_G), test=test)


def _with_exact_effect(comparison: Comparison, a: Outcomes, b: Outcomes, shared: list[Any], alpha: float) -> Comparison:
    """Return the comparison with the minimum detectable effect of exact McNemar.

    The rarer kind of discordant tasks is assumed to stay as frequent as observed.
    """
    only_a = sum(a[task][0] > b[task][0] for task in shared)
    only_b = sum(b[task][0] > a[task][0] for task in shared)
    effect = mcnemar_detectable(len(shared), loss=min(only_a, only_b) / len(shared), alpha=alpha)
    return dataclasses.replace(comparison, minimum_detectable_effect=effect)


def sign_flip_exact(differences_G: FloatArray) -> float:
    """Return the exact two-sided p-value of G independent differences.

    It is the fraction of all 2^G sign combinations whose sum is at least as far from 0 (Fisher 1935, §21). For
    differences that are −1, 0 or 1 it equals the exact McNemar test.
    """
    if len(differences_G) > MOST_FLIPPED:
        raise NumericError(
            f"the exact test allows at most {MOST_FLIPPED} differences, not {len(differences_G)}; use the t test"
        )
    sums = np.zeros(1)  # finally all 2^G signed sums
    for difference in differences_G:
        sums = np.concatenate([sums + difference, sums - difference])
    observed = abs(float(np.sum(differences_G)))
    # Sums that are equal in exact arithmetic may differ in the last digits.
    slack = 1e-9 * max(1.0, float(np.abs(differences_G).sum()))
    return float(np.mean(np.abs(sums) >= observed - slack))


def mcnemar_power(n: int, gain: float, loss: float, *, alpha: float = 1 - LEVEL) -> float:
    """Return the probability that exact McNemar rejects on `n` tasks, by enumeration.

    The number of discordant tasks is d ~ Binomial(n, gain + loss); the first agent alone solves c ~ Binomial(d, loss /
    (gain + loss)) of them. The test rejects if c or d − c is at most k_d, the maximum k with
    2·P(Binomial(d, ½) ≤ k) ≤ α.

    `gain` is the probability that only the second agent solves a task, `loss` that only the first one does.
    """
    discordant = gain + loss
    if n < 1 or gain < 0 or loss < 0 or discordant > 1 + 1e-12:
        raise NumericError(
            f"McNemar needs n ≥ 1 and fractions of tasks with gain + loss ≤ 1, not n={n}, gain={gain}, loss={loss}"
        )
    if discordant == 0:
        return 0.0
    d = np.arange(n + 1)
    critical = stats.binom.ppf(alpha / 2, d, 0.5)
    # ppf returns the minimum k with P(≤ k) ≥ α/2; the test rejects at this k only if the two are equal.
    is_exact = 2 * stats.binom.cdf(critical, d, 0.5) <= alpha
    critical = np.where(is_exact, critical, critical - 1)
    fraction = loss / discordant
    few_losses = stats.binom.cdf(critical, d, fraction)
    few_gains = stats.binom.cdf(critical, d, 1 - fraction)
    rejects = few_losses + few_gains
    probability_of_d = stats.binom.pmf(d, n, min(1.0, discordant))  # gain + loss may exceed 1 by rounding
    return float(np.sum(probability_of_d * rejects))


def mcnemar_detectable(n: int, loss: float = 0.0, *, alpha: float = 1 - LEVEL) -> float:
    """Return the minimum difference gain − loss that exact McNemar at the level `alpha` finds on `n` tasks with
    probability `POWER`.

    The best case is `loss` = 0: the second agent solves every task that the first solves. inf if no difference is
    large enough.
    """
    largest = 1.0 - loss
    if n < 1 or largest <= loss or mcnemar_power(n, largest, loss, alpha=alpha) < POWER:
        return math.inf
    gain = brentq(lambda gain: mcnemar_power(n, gain, loss, alpha=alpha) - POWER, loss, largest)
    return float(gain) - loss
