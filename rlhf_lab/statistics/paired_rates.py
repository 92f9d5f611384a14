"""Rates of two policies on the same prompts, bounds for events that never occurred, and required numbers of prompts.

Responses to one prompt are averaged first. Response i of one policy and response i of the other are independent
samples, so a pair consists of one prompt under two policies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Comparison
from rlhf_lab.statistics.inference import mcnemar_exact, paired_difference

Outcomes = Mapping[Any, Sequence[float]]
"""Map from prompt to the scores of its responses; the scores of a rate are 0 or 1."""


def rule_of_three(n: int) -> float:
    """Return the upper bound of a rate at confidence LEVEL if none of `n` independent trials had the event.

    The exact bound is 1 − (1 − LEVEL)^(1/n), which at 95 % is about 3/n (Hanley & Lippman-Hand 1983).
    """
    if n < 1:
        raise NumericError(f"the rule of three needs at least one trial, not {n}")
    return 1.0 - (1.0 - LEVEL) ** (1.0 / n)


def paired_by_prompt(a: Outcomes, b: Outcomes, cluster_of: Mapping[Any, Hashable] | None = None) -> Comparison:
    """Return the mean of `b` minus the mean of `a` over the prompts that both sides have.

    The test is exact McNemar if every prompt has a single response scored 0 or 1 and is a cluster of its own, else the
    t test of prompt means, clustered. The interval is that of the t test in both cases.

    Args:
        cluster_of: prompt → cluster, for prompts that share errors, such as tasks of one template. A prompt without an
            entry is a cluster of its own.
    """
    shared, a_P, b_P, unit_P = shared_means(a, b, cluster_of or {})
    comparison = paired_difference(b_P, a_P, unit_P)
    has_own_clusters = len(np.unique(unit_P)) == len(shared)
    is_single = has_own_clusters and all(len(a[prompt]) == len(b[prompt]) == 1 for prompt in shared)
    is_binary = np.isin([*a_P, *b_P], (0.0, 1.0)).all()
    if not (is_single and is_binary) or comparison.difference.clusters < 2:
        return comparison
    return with_mcnemar(comparison, a_P, b_P, ("the first", "the second"))


def shared_means(
    a: Outcomes, b: Outcomes, cluster_of: Mapping[Any, Hashable]
) -> tuple[list[Any], FloatArray, FloatArray, np.ndarray]:
    """Return (prompts that both sides have, their means of `a`, of `b`, their clusters from 0)."""
    shared = [prompt for prompt in a if len(a[prompt]) and len(b.get(prompt, ()))]
    a_P = np.array([np.mean(a[prompt]) for prompt in shared])
    b_P = np.array([np.mean(b[prompt]) for prompt in shared])
    units = [cluster_of.get(prompt, prompt) for prompt in shared]
    position = {unit: index for index, unit in enumerate(dict.fromkeys(units))}
    return shared, a_P, b_P, np.array([position[unit] for unit in units], dtype=int)


def with_mcnemar(comparison: Comparison, a_P: FloatArray, b_P: FloatArray, names: tuple[str, str]) -> Comparison:
    """Return the comparison of two columns of outcomes 0 and 1, one per prompt, with the test of McNemar."""
    # Only discordant prompts, which one side alone solved, carry information on the difference.
    only_a = int((a_P > b_P).sum())
    only_b = int((b_P > a_P).sum())
    test = f"exact McNemar test, {only_b} prompts only {names[1]}, {only_a} only {names[0]}"
    return dataclasses.replace(comparison, p_value=mcnemar_exact(only_b, only_a), test=test)


def margin_p_values(comparison: Comparison, margin: float) -> tuple[float, float]:
    """Return p-values of "not worse by more than the margin" and of "worse by more than the margin".

    A negative difference is worse, and margin ≥ 0. Both are t tests of δ = −margin, one in each direction, doubled:
    p ≤ 0.05 means that the 95 % interval is on one side of −margin. NaN if the comparison has no test.
    """
    gap, error, freedom = comparison.difference.mean, comparison.standard_error, comparison.freedom
    if not freedom > 0:
        return math.nan, math.nan
    above = gap + margin
    if error == 0:  # the difference is exact, so it decides the claim unless it equals the margin
        if above > 0:
            return 0.0, 1.0
        return (1.0, 0.0) if above < 0 else (1.0, 1.0)
    not_worse = float(stats.t.sf(above / error, freedom))
    worse = float(stats.t.cdf(above / error, freedom))
    return min(1.0, 2 * not_worse), min(1.0, 2 * worse)


def prompts_to_find(comparison: Comparison, effect: float) -> float:
    """Return the approximate number of prompts needed to find a true difference of `effect`; inf if unknown.

    The power is that of the comparison. The minimum detectable effect (MDE) decreases with the square root of the
    number of prompts, so the result is n · (MDE / effect)².
    """
    detectable = comparison.minimum_detectable_effect
    if not effect > 0 or not math.isfinite(detectable):
        return math.inf
    return float(math.ceil(comparison.difference.clusters * (detectable / effect) ** 2))
