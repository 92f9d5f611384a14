"""STARC distance between rewards (arXiv:2309.15257): how differently two rewards rank policies.

The setting is a one-step decision: a reward of (prompt, response). Everything that never changes which policy is better
is removed first:

    canonicalise   c(x, y) = r(x, y) − mean over the policy's responses y′ of r(x, y′)     no offset per prompt
    normalise      s = c / ‖c‖₂, the norm over prompts and responses; a constant reward stays 0     no scale
    distance       d = ½ ‖s₁ − s₂‖₂

The distance is 0 for rewards that differ only by scale and prompt offset, √½ ≈ 0.71 for uncorrelated rewards, 1 for
opposite ones, and ½ between a constant and any other. With ρ the correlation within prompts, d = √((1 − ρ)/2), which is
the EPIC distance (arXiv:2006.13900) under this canonicalisation. Expectations are over sampled responses, so rewards
are compared only on the distribution of the policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.association import within_prompts
from rlhf_lab.statistics.estimates import Estimate

CONSTANT_BELOW = 1e-12
"""Maximum ‖c‖² of a reward that is treated as constant; such a small rest is rounding error."""


def starc_distance(first_N: ArrayLike, second_N: ArrayLike, prompts_N: ArrayLike) -> Estimate:
    """Return the distance of two rewards on the same N responses, with an interval from a bootstrap over prompts.

    Args:
        first_N, second_N: (N,) scores; a response that either leaves unscored (NaN) is left out and counted.
        prompts_N: (N,) prompt of each response; a prompt needs two or more responses to contribute.
    """
    return within_prompts({"first": first_N, "second": second_N}, prompts_N).estimate(_distance)


def starc_distances(rewards: Mapping[str, ArrayLike], prompts_N: ArrayLike) -> dict[tuple[str, str], Estimate]:
    """Return the distance of every pair of rewards: (first name, second name) → distance."""
    return {
        (first, second): starc_distance(rewards[first], rewards[second], prompts_N)
        for first, second in itertools.combinations(rewards, 2)
    }


def _distance(sums_22: FloatArray) -> FloatArray:
    """Return ½ ‖s₁ − s₂‖ from sums of products of canonical rewards, (…, 2, 2) → (…,)."""
    first_squares, second_squares = sums_22[..., 0, 0], sums_22[..., 1, 1]
    first_varies = first_squares > CONSTANT_BELOW
    second_varies = second_squares > CONSTANT_BELOW
    # A constant reward is not normalised: dividing by 1 keeps it at 0 instead of amplifying rounding error.
    first_norm2 = np.where(first_varies, first_squares, 1.0)
    second_norm2 = np.where(second_varies, second_squares, 1.0)
    norms = np.sqrt(first_norm2 * second_norm2)
    product = np.where(first_varies & second_varies, sums_22[..., 0, 1] / norms, 0.0)
    # ‖s₁ − s₂‖² = ‖s₁‖² + ‖s₂‖² − 2·s₁·s₂; a normalised reward has norm 1, a constant one norm 0.
    squared = first_varies.astype(float) + second_varies.astype(float) - 2 * product
    return 0.5 * np.sqrt(np.clip(squared, 0.0, None))
