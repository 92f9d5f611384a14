"""Importance weights for samples of another program than training's: the same model, computed a little differently.

Samples are drawn from μ, what the sampler computes, and the policy loss takes them for samples of π_old, what training
computes of the same weights. Each term of the loss, of a token or a whole reply, is multiplied by the ratio π_old/μ, so
that its expectation is the one under π_old, as in the decoupled objective (arXiv:2110.00641, eq. 4). The ratio is
bounded from above (arXiv:1802.01561, eq. 1), which keeps the variance finite and biases towards μ.
"""

from __future__ import annotations

import math

from torch import Tensor


def importance_weights(log_ratios: Tensor, *, cap: float) -> Tensor:
    """min(exp(log ratio), cap) of each token or reply.

    Args:
        log_ratios: log π_old − log μ, nats: of tokens, or summed over the tokens of each reply.
        cap: largest weight.
    """
    # compared in log space: a reply's ratio may be too large for float32
    return log_ratios.clamp(max=math.log(cap)).exp()


def effective_share(log_ratios: Tensor) -> Tensor:
    """Effective sample size of ratios that are not capped, as a share of the sample: (Σw)² / (n·Σw²), in (0, 1].

    1 where all ratios are the same; 1/n where one sample has all the weight.
    """
    weights = (log_ratios - log_ratios.max()).exp()  # a common factor cancels, and the largest weight is then 1
    return weights.sum().square() / (len(weights) * weights.square().sum())
