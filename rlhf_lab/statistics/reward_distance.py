"""STARC distance between rewards (arXiv:2309.15257): how differently two rewards order policies.

A reward on (prompt, reply) is a one-step decision. What never changes which policy is better is removed first:

    canonicalise   c(x, y) = r(x, y) − mean over the policy's replies y′ of r(x, y′)     no offset per prompt
    normalise      s = c / ‖c‖₂, the norm over prompts and replies; a constant reward stays 0     no scale
    distance       d = ½ ‖s₁ − s₂‖₂

0 for rewards that differ by scale and prompt offset only, √½ ≈ .71 for unrelated ones, 1 for opposite ones, ½ between a
constant and any other. With ρ the correlation within prompts, d = √((1 − ρ)/2), which is EPIC's distance
(arXiv:2006.13900) under this canonicalisation. Expectations are over sampled replies: rewards are compared where the
policy goes, and nowhere else.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.association import within_prompts
from rlhf_lab.statistics.estimates import Estimate

UNRELATED = 0.5**0.5
"""Distance of two rewards without correlation."""
CONSTANT_BELOW = 1e-12
"""‖c‖² of a reward below which it is taken as constant: only rounding is left of it."""


def starc_distance(first_N: ArrayLike, second_N: ArrayLike, prompts_N: ArrayLike) -> Estimate:
    """Distance of two rewards of the same N replies, with an interval from a bootstrap over prompts.

    Args:
        first_N, second_N: (N,) scores; a reply that one leaves unscored (NaN) is left out and counted.
        prompts_N: (N,) prompt of each reply; each needs two replies or more to say anything.
    """
    return within_prompts({"first": first_N, "second": second_N}, prompts_N).estimate(_distance)


def starc_distances(rewards: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> dict[tuple[str, str], Estimate]:
    """All pairs of rewards."""
    return {
        (first, second): starc_distance(rewards[first], rewards[second], prompts_N)
        for first, second in itertools.combinations(rewards, 2)
    }


def _distance(sums_22: FloatArray) -> FloatArray:
    """½ ‖s₁ − s₂‖ from sums of products of canonical rewards, (…, 2, 2) → (…,)."""
    first_squares, second_squares = sums_22[..., 0, 0], sums_22[..., 1, 1]
    first_varies = first_squares > CONSTANT_BELOW
    second_varies = second_squares > CONSTANT_BELOW
    norms = np.sqrt(np.where(first_varies, first_squares, 1.0) * np.where(second_varies, second_squares, 1.0))
    product = np.where(first_varies & second_varies, sums_22[..., 0, 1] / norms, 0.0)
    # ‖s₁ − s₂‖² = ‖s₁‖² + ‖s₂‖² − 2·s₁·s₂; a normalised reward has length 1, a constant one length 0.
    squared = first_varies.astype(float) + second_varies.astype(float) - 2 * product
    return 0.5 * np.sqrt(np.clip(squared, 0.0, None))
