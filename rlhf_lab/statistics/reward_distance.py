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

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.association import within_prompts
from rlhf_lab.statistics.estimates import Estimate

UNRELATED = 0.5**0.5


def starc_distance(first_N: ArrayLike, second_N: ArrayLike, prompts_N: ArrayLike) -> Estimate:
    """Distance of two rewards of the same N replies, with an interval from a bootstrap over prompts.

    Args:
        first_N, second_N: (N,) scores; a reply that one leaves unscored (NaN) is left out and counted.
        prompts_N: (N,) prompt of each reply; each needs two replies or more to say anything.
    """
    return within_prompts({"first": first_N, "second": second_N}, prompts_N).estimate(_distance)


def starc_distances(rewards: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> dict[tuple[str, str], Estimate]:
    """All pairs of rewards."""
    names = list(rewards)
    return {
        (one, other): starc_distance(rewards[one], rewards[other], prompts_N)
        for place, one in enumerate(names)
        for other in names[place + 1 :]
    }


def _distance(sums_22: FloatArray) -> FloatArray:
    """½ ‖s₁ − s₂‖ from sums of products of canonical rewards, (…, 2, 2) → (…,)."""
    one, other = sums_22[..., 0, 0], sums_22[..., 1, 1]
    floor = 1e-12
    sizes = np.sqrt(np.where(one > floor, one, 1.0) * np.where(other > floor, other, 1.0))
    both = (one > floor) & (other > floor)
    product = np.where(both, sums_22[..., 0, 1] / sizes, 0.0)
    squared = (one > floor).astype(float) + (other > floor).astype(float) - 2 * product
    return 0.5 * np.sqrt(np.clip(squared, 0.0, None))
