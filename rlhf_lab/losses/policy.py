"""Losses of policy and critic: pure functions from log-probabilities and advantages of sampled tokens, one per token.

Tokens of all rows are concatenated, (N,). The losses do not weight tokens against each other: `token_weights` does, and
the loss of a step is Σ weight·loss / units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class PolicyTokens(NamedTuple):
    """Inputs of a policy loss. Each (N,) except `rows`.

    Attributes:
        logp, old: log-probability now (differentiable) and at sampling time, nats.
        advantage: advantage of each token.
        row: index of the response that each token belongs to, 0 … rows − 1.
        rows: number of responses.
    """

    logp: Tensor
    old: Tensor
    advantage: Tensor
    row: Tensor
    rows: int


class ClipRange(NamedTuple):
    """Trust region of the probability ratio.

    Attributes:
        low, high: ratios are kept within [1 − low, 1 + high].
        dual: bound on the loss of negative advantages; 0 is off.
        log_ratio: bound on |log ratio| before it is exponentiated.
    """

    low: float
    high: float
    dual: float = 0.0
    log_ratio: float = 20.0  # e²⁰ is far outside any trust region and far below the float32 maximum


class PolicyLoss(NamedTuple):
    """Loss of each token (differentiable), its probability ratio, and True where the ratio was clipped. Each (N,)."""

    per_token: Tensor
    ratio: Tensor
    clipped: Tensor


def ppo_clip(tokens: PolicyTokens, clip: ClipRange) -> PolicyLoss:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)·A), ρ = π/π_old (arXiv:1707.06347, eq. 7).

    low ≠ high is DAPO's clip-higher (arXiv:2503.14476, eq. 10). `dual` = c > 1 bounds the loss of a negative advantage
    by −cA (arXiv:1912.09729, eq. 5).
    """
    ratio = (tokens.logp - tokens.old).clamp(-clip.log_ratio, clip.log_ratio).exp()
    return _clipped_loss(ratio, tokens.advantage, clip)


def gspo(tokens: PolicyTokens, clip: ClipRange) -> PolicyLoss:
    """ppo_clip with one ratio per response, s = exp(mean_t log ρ_t) (arXiv:2507.18071, eq. 5).

    Each token has the loss of its full response, so the mean over a response's tokens (`sequence_mean`) is that loss.
    """
    log_ratio = tokens.logp - tokens.old
    # mean log ratio of each response; `clamp` because a row without tokens would divide by 0
    count_R = torch.bincount(tokens.row, minlength=tokens.rows).clamp(min=1)
    mean_R = log_ratio.new_zeros(tokens.rows).index_add(0, tokens.row, log_ratio) / count_R
    ratio = mean_R.clamp(-clip.log_ratio, clip.log_ratio).exp()[tokens.row]
    return _clipped_loss(ratio, tokens.advantage, clip)


def cispo(tokens: PolicyTokens, clip: ClipRange) -> PolicyLoss:
    """−sg(clip(ρ, 1 − low, 1 + high))·A·log π: clips the weight, never drops a token (arXiv:2506.13585, eq. 4)."""
    # `detach`: the clipped ratio is a constant weight, and only log π carries gradients
    ratio = (tokens.logp.detach() - tokens.old).clamp(-clip.log_ratio, clip.log_ratio).exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return PolicyLoss(-weight * tokens.advantage * tokens.logp, ratio, weight != ratio)


def _clipped_loss(ratio: Tensor, advantage: Tensor, clip: ClipRange) -> PolicyLoss:
    unclipped = -ratio * advantage
    clipped = -ratio.clamp(1 - clip.low, 1 + clip.high) * advantage
    loss = torch.maximum(unclipped, clipped)
    if clip.dual:
        bounded = torch.minimum(loss, -clip.dual * advantage)
        loss = torch.where(advantage < 0, bounded, loss)
    return PolicyLoss(loss, ratio.detach(), (clipped > unclipped).detach())


POLICY_LOSSES: dict[str, Callable[[PolicyTokens, ClipRange], PolicyLoss]] = {
    "ppo_clip": ppo_clip,
    "dapo": ppo_clip,  # same loss; the name only selects other default settings
    "gspo": gspo,
    "cispo": cispo,
}


def token_weights(aggregation: str, length_N: Tensor, max_tokens: int) -> Tensor:
    """Return the weight of each token given the length of its response, (N,). The loss is Σ weight·loss / `loss_units`.

    `token_mean`: every token of the step counts equally (DAPO). `sequence_mean`: every response counts equally (GRPO).
    `constant`: tokens are divided by the maximum response length, so length has no influence (Dr. GRPO).
    """
    return {
        "token_mean": torch.ones_like(length_N, dtype=torch.float32),
        "sequence_mean": 1.0 / length_N.float(),
        "constant": torch.full_like(length_N, 1.0 / max_tokens, dtype=torch.float32),
    }[aggregation]


def loss_units(aggregation: str, responses: int, tokens: int) -> int:
    """Return the divisor of the weighted sum of a step: its tokens or its responses."""
    return tokens if aggregation == "token_mean" else responses


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


# Importance weights for samples from μ, the probabilities that the sampler computes. They differ slightly from π_old,
# which training computes and of which the policy loss treats them as samples. Each term of the loss (one token or one
# full response) is multiplied by π_old/μ, so that its expectation is that under π_old, as in the decoupled objective
# (arXiv:2110.00641, eq. 4). The cap (arXiv:1802.01561, eq. 1) keeps the variance finite and biases towards μ.


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


# For tokens sampled from π, the three estimators below estimate KL(π ‖ π_ref) per token, k1 and k3 without bias
# (http://joschu.net/blog/kl-approx.html). As a *loss*, differentiated through log π, they differ: the gradient of k2 is
# that of the KL, the gradient of k1 has mean zero, and the gradient of k3 is that of KL(π_ref ‖ π) to first order.

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
