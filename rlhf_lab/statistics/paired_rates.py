"""Rates of the same prompts under two policies, what no event in n says, and how many prompts would decide.

Replies to one prompt are averaged first: reply i of one policy and reply i of the other are independent draws, so a
pair is one prompt under two policies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.estimates import LEVEL, Comparison
from rlhf_lab.statistics.inference import mcnemar_exact, paired_difference

Outcomes = Mapping[Any, Sequence[float]]
"""Prompt → its scored replies, each a number; of a rate 0 or 1."""


def rule_of_three(n: int, *, level: float = LEVEL) -> float:
    """The rate below which the truth lies with probability `level` when none of `n` independent trials had the event.

    Exact: 1 − (1 − level)^(1/n), which at 95 % is about 3/n (Hanley & Lippman-Hand 1983).
    """
    if n < 1:
        raise NumericError(f"the rule of three needs at least one trial, not {n}")
    return 1.0 - (1.0 - level) ** (1.0 / n)


def paired_by_prompt(a: Outcomes, b: Outcomes) -> Comparison:
    """Mean of `b` minus mean of `a` over the prompts that both have.

    The test is exact McNemar where every prompt has one reply that is 0 or 1, else the t test of the prompts' means.
    The interval is that of the t test in both cases.
    """
    shared = [prompt for prompt in a if prompt in b and len(a[prompt]) and len(b[prompt])]
    a_P = np.array([np.mean(a[prompt]) for prompt in shared])
    b_P = np.array([np.mean(b[prompt]) for prompt in shared])
    comparison = paired_difference(b_P, a_P, np.arange(len(shared)))
    is_single = all(len(side[prompt]) == 1 for side in (a, b) for prompt in shared)
    is_binary = bool(np.isin(np.concatenate([a_P, b_P]), (0.0, 1.0)).all())
    if not (is_single and is_binary) or comparison.difference.clusters < 2:
        return comparison
    only_a, only_b = int((a_P > b_P).sum()), int((b_P > a_P).sum())
    test = f"exact McNemar test, {only_b} prompts only the second, {only_a} only the first"
    return dataclasses.replace(comparison, p_value=mcnemar_exact(only_b, only_a), test=test)


def margin_p_values(comparison: Comparison, margin: float) -> tuple[float, float]:
    """(p of "not worse by more than the margin", p of "worse by more than the margin"); a fall is worse, margin ≥ 0.

    Two t tests of δ = −margin, one in each direction, each doubled: p ≤ .05 is a 95 % interval that lies on one side
    of −margin. NaN when the comparison has no test.
    """
    gap, error, freedom = comparison.difference.mean, comparison.standard_error, comparison.freedom
    if not freedom > 0:
        return math.nan, math.nan
    above = gap + margin
    if error == 0:
        return (0.0, 1.0) if above > 0 else (1.0, 0.0) if above < 0 else (1.0, 1.0)
    not_worse = float(stats.t.sf(above / error, freedom))
    worse = float(stats.t.cdf(above / error, freedom))
    return min(1.0, 2 * not_worse), min(1.0, 2 * worse)


def prompts_to_find(comparison: Comparison, effect: float) -> float:
    """About how many prompts find a true difference of `effect` with the comparison's power; inf when unknown.

    The minimum detectable effect falls with the root of the number of prompts: n · (MDE / effect)².
    """
    detectable = comparison.minimum_detectable_effect
    if not effect > 0 or not math.isfinite(detectable):
        return math.inf
    return float(math.ceil(comparison.difference.clusters * (detectable / effect) ** 2))
