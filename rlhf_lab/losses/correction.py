"""Importance weights for samples from a sampler whose probabilities differ slightly from those of training.

Samples come from μ, the probabilities that the sampler computes. The policy loss treats them as samples of π_old, the
probabilities that training computes. Each term of the loss (one token or one full response) is multiplied by the ratio
π_old/μ, so that its expectation is that under π_old, as in the decoupled objective (arXiv:2110.00641, eq. 4). The ratio
is capped (arXiv:1802.01561, eq. 1): this keeps the variance finite and biases towards μ.
"""

from __future__ import annotations

import math

from torch import Tensor


def importance_weights(log_ratios: Tensor, *, cap: float) -> Tensor:
    """Return min(exp(log ratio), cap) of each token or response.

    Args:
        log_ratios: log π_old − log μ, nats, of tokens, or summed over the tokens of each response.
        cap: maximum weight.
    """
    # The comparison is in log space because the ratio of a full response may overflow float32.
    return log_ratios.clamp(max=math.log(cap)).exp()


def effective_fraction(log_ratios: Tensor) -> Tensor:
    """Return the effective sample size of uncapped ratios as a fraction of the sample: (Σw)² / (n·Σw²), in (0, 1].

    It is 1 if all ratios are equal, and 1/n if one sample has all the weight.
    """
    # A common factor cancels. Dividing by the maximum makes the largest weight 1, so that nothing overflows.
    weights = (log_ratios - log_ratios.max()).exp()
    return weights.sum().square() / (len(weights) * weights.square().sum())
