"""Loss and explained variance of the critic."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values_N: Tensor, old_N: Tensor, returns_N: Tensor, *, clip: float) -> Tensor:
    """½ max((V − R)², (V_clip − R)²), per token (N,).

    V_clip is V kept within `clip` of its value at sampling time; clip=0 turns clipping off. This is the value clipping
    of PPO's original implementation (arXiv:2005.12729, section 3).
    """
    squared_error_N = (values_N - returns_N).square()
    if not clip:
        return 0.5 * squared_error_N
    clipped_N = old_N + (values_N - old_N).clamp(-clip, clip)
    return 0.5 * torch.maximum(squared_error_N, (clipped_N - returns_N).square())


def explained_variance(values_N: Tensor, returns_N: Tensor) -> Tensor:
    """1 − Var(R − V)/Var(R), a scalar: 1 is a perfect critic, 0 is no better than a constant."""
    residual_variance = (returns_N - values_N).var(unbiased=False)
    return_variance = returns_N.var(unbiased=False).clamp(min=1e-12)  # no 0/0 if all returns are equal
    return 1 - residual_variance / return_variance
