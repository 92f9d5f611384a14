"""KL estimators from the log-probabilities of sampled tokens, and the controller of the KL penalty.

For tokens sampled from π, the three estimators below estimate KL(π ‖ π_ref) per token, k1 and k3 without bias
(http://joschu.net/blog/kl-approx.html). As a *loss*, differentiated through log π, they differ: the gradient of k2 is
that of the KL, the gradient of k1 has mean zero, and the gradient of k3 is that of KL(π_ref ‖ π) to first order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Nats. Without it, a single token to which the policy gives almost no probability would dominate the mean.
K3_CLAMP = 10.0


def k1(logp: Tensor, ref: Tensor) -> Tensor:
    """log π − log π_ref: unbiased, high variance, can be negative."""
    return logp - ref


def k2(logp: Tensor, ref: Tensor) -> Tensor:
    """½ (log π − log π_ref)²: biased, low variance."""
    return 0.5 * (logp - ref).square()


def k3(logp: Tensor, ref: Tensor) -> Tensor:
    """r − 1 − log r with r = π_ref/π: unbiased, never negative; r is clamped at e¹⁰ (GRPO, arXiv:2402.03300, eq. 4)."""
    log_r = (ref - logp).clamp(max=K3_CLAMP)
    # expm1 because r − 1 cancels to 0 in floating point where the policies hardly differ
    return torch.expm1(log_r) - log_r


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def adaptive_beta(beta: float, kl: float, *, target: float, horizon: float, samples: int) -> float:
    """Return the KL coefficient after `samples` responses with mean KL `kl` (arXiv:1909.08593, section 2.2).

    β ← β·(1 + e·samples/horizon) with e = clip(kl/target − 1, −0.2, 0.2). KLs are in nats per response.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return beta * (1.0 + error * samples / horizon)
