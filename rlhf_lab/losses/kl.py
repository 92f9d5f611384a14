"""KL estimators from the log-probabilities of sampled tokens, and the controller of the KL penalty.

For tokens drawn from π all three estimators below estimate KL(π ‖ π_ref) per token (http://joschu.net/blog/kl-approx.html):
k1 and k3 without bias. As a *loss*, differentiated through log π, they differ: the gradient of k2 is that of the KL,
the gradient of k1 has mean zero, and k3's is the gradient of KL(π_ref ‖ π) to first order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

K3_CLAMP = 10.0  # nats; one token that the policy has all but dropped would otherwise dominate the mean


def k1(logp: Tensor, ref: Tensor) -> Tensor:
    """log π − log π_ref: unbiased, high variance, can be negative."""
    return logp - ref


def k2(logp: Tensor, ref: Tensor) -> Tensor:
    """½ (log π − log π_ref)²: biased, low variance."""
    return 0.5 * (logp - ref).square()


def k3(logp: Tensor, ref: Tensor) -> Tensor:
    """r − 1 − log r with r = π_ref/π: unbiased, never negative; r is clamped at e¹⁰ (GRPO, arXiv:2402.03300, eq. 4)."""
    log_r = (ref - logp).clamp(max=K3_CLAMP)
    return torch.expm1(log_r) - log_r  # expm1: r − 1 cancels where the policies hardly differ


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def adaptive_beta(beta: float, kl: float, *, target: float, horizon: float, samples: int) -> float:
    """The KL coefficient after `samples` replies with mean KL `kl` (arXiv:1909.08593, section 2.2).

    β ← β·(1 + e·samples/horizon) with e = clip(kl/target − 1, −0.2, 0.2). KLs are nats per reply.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return beta * (1.0 + error * samples / horizon)
