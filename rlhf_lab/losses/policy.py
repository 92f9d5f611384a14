"""Policy losses: pure functions from log-probabilities and advantages of sampled tokens to one loss per token.

Tokens of all rows are laid end to end, (N,). How tokens are weighted against each other is not decided here but by
`token_weights`: the step's loss is Σ weight·loss / units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class PolicyTokens(NamedTuple):
    """What a policy loss reads. Each (N,) except `rows`.

    Attributes:
        logp, old: log-probability now (differentiable) and when the token was sampled, nats.
        advantage: of the token.
        row: the reply each token belongs to, 0 … rows − 1.
    """

    logp: Tensor
    old: Tensor
    advantage: Tensor
    row: Tensor
    rows: int


class Clip(NamedTuple):
    """The trust region.

    Attributes:
        low, high: ratios are kept within [1 − low, 1 + high].
        dual: bounds the loss of negative advantages; 0 is off.
        log_ratio: bounds |log ratio| before it is exponentiated.
    """

    low: float
    high: float
    dual: float = 0.0
    log_ratio: float = 20.0  # e²⁰ lies far outside any trust region, and well inside float32


class PolicyLoss(NamedTuple):
    """Loss of each token (differentiable); probability ratio and whether it was clipped, for the log. Each (N,)."""

    per_token: Tensor
    ratio: Tensor
    clipped: Tensor


def ppo_clip(tokens: PolicyTokens, clip: Clip) -> PolicyLoss:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)·A), ρ = π/π_old (arXiv:1707.06347, eq. 7).

    low ≠ high is DAPO's clip-higher (arXiv:2503.14476, eq. 10). `dual` = c > 1 keeps the loss of a negative advantage
    below −cA (arXiv:1912.09729, eq. 5).
    """
    ratio = (tokens.logp - tokens.old).clamp(-clip.log_ratio, clip.log_ratio).exp()
    return _clipped_loss(ratio, tokens.advantage, clip)


def gspo(tokens: PolicyTokens, clip: Clip) -> PolicyLoss:
    """ppo_clip with one ratio per reply, s = exp(mean_t log ρ_t) (arXiv:2507.18071, eq. 5).

    Each token holds its reply's whole loss, so the mean over the tokens of a reply (`sequence_mean`) is the reply's.
    """
    log_ratio = tokens.logp - tokens.old
    count_R = torch.bincount(tokens.row, minlength=tokens.rows).clamp(min=1)
    mean_R = log_ratio.new_zeros(tokens.rows).index_add(0, tokens.row, log_ratio) / count_R
    ratio = mean_R.clamp(-clip.log_ratio, clip.log_ratio).exp()[tokens.row]
    return _clipped_loss(ratio, tokens.advantage, clip)


def cispo(tokens: PolicyTokens, clip: Clip) -> PolicyLoss:
    """−sg(clip(ρ, 1 − low, 1 + high))·A·log π: clips the weight, never drops a token (arXiv:2506.13585, eq. 4)."""
    ratio = (tokens.logp.detach() - tokens.old).clamp(-clip.log_ratio, clip.log_ratio).exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return PolicyLoss(-weight * tokens.advantage * tokens.logp, ratio, weight != ratio)


def _clipped_loss(ratio: Tensor, advantage: Tensor, clip: Clip) -> PolicyLoss:
    unclipped = -ratio * advantage
    clipped = -ratio.clamp(1 - clip.low, 1 + clip.high) * advantage
    loss = torch.maximum(unclipped, clipped)
    if clip.dual:
        loss = torch.where(advantage < 0, torch.minimum(loss, -clip.dual * advantage), loss)
    return PolicyLoss(loss, ratio.detach(), (clipped > unclipped).detach())


POLICY_LOSSES: dict[str, Callable[[PolicyTokens, Clip], PolicyLoss]] = {
    "ppo_clip": ppo_clip,
    "dapo": ppo_clip,  # the same loss; DAPO's own are the defaults that come with the name
    "gspo": gspo,
    "cispo": cispo,
}


def token_weights(aggregation: str, length_N: Tensor, max_tokens: int) -> Tensor:
    """Weight of each token given its reply's length, (N,). The step's loss is Σ weight·loss / `loss_units`.

    `token_mean`: every token of the step counts the same (DAPO). `sequence_mean`: every reply counts the same (GRPO).
    `constant`: tokens are divided by the longest possible reply, so that length has no influence (Dr. GRPO).
    """
    return {
        "token_mean": torch.ones_like(length_N, dtype=torch.float32),
        "sequence_mean": 1.0 / length_N.float(),
        "constant": torch.full_like(length_N, 1.0 / max_tokens, dtype=torch.float32),
    }[aggregation]


def loss_units(aggregation: str, replies: int, tokens: int) -> int:
    """What the weighted sum of a step is divided by."""
    return tokens if aggregation == "token_mean" else replies
