"""Group relative policy optimisation (GRPO) in plain PyTorch: advantages of a group, and the updates of an iteration.

DeepSeekMath (arXiv:2402.03300, section 4.1). PPO without a critic: the baseline of a response is the mean reward of
other responses to the same prompt, and the KL penalty is a term of the loss.

Left out: sampling, the reward, other advantages (RLOO, Dr. GRPO) and losses (DAPO, GSPO).

Shapes: B prompts, G responses to each, R = B·G responses, T positions, V tokens of the vocabulary. `policy(tokens_RT)`
returns logits (R, T, V); those at position t predict the token at position t + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    """Settings of an iteration."""

    beta: float = 0.04  # weight of the KL estimate in the loss
    clip: float = 0.2  # probability ratios are kept within 1 ± clip
    per_response: bool = False  # see `losses`
    missing_eos_penalty: float = 1.0  # subtracted from the reward of a response that was cut off before its EOS
    temperature: float = 1.0  # of sampling
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of Adam
    eps: float = 1e-5
    max_grad_norm: float = 1.0  # larger gradients are scaled down to this norm


class Batch(NamedTuple):
    """Responses of an iteration, without gradients.

    Attributes:
        tokens: token ids of prompts and responses, padded on the right, (R, T).
        mask: True for response tokens, EOS included, (R, T).
        old, ref: log-probability of each token when it was sampled, and under the reference, nats, (R, T).
        advantage: advantage of each response, (R,).
    """

    tokens: Tensor
    mask: Tensor
    old: Tensor
    ref: Tensor
    advantage: Tensor


class Losses(NamedTuple):
    """Loss of an update, means of its KL estimate and of clipped tokens, and gradient norm before clipping, () each."""

    loss: Tensor
    kl: Tensor
    clipped_fraction: Tensor
    norm: Tensor


# 1. From sampled tokens to log-probabilities.


def cut_after_eos(sampled: list[int], eos: int) -> list[int]:
    """Return the response: it ends with its first EOS, which is an action too; later tokens are none."""
    return sampled[: sampled.index(eos) + 1] if eos in sampled else sampled


def pad(prompts: Sequence[list[int]], responses: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids (R, T), padded on the right, and a mask (R, T) of the response tokens."""
    width = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True))
    tokens_RT = torch.zeros(len(prompts), width, dtype=torch.long)
    mask_RT = torch.zeros(len(prompts), width, dtype=torch.bool)
    for r, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        end = len(prompt) + len(response)
        tokens_RT[r, :end] = torch.tensor(prompt + response)
        mask_RT[r, len(prompt) : end] = True
    return tokens_RT, mask_RT


def token_logps(policy: nn.Module, tokens_RT: Tensor, temperature: float) -> Tensor:
    """Return log π(token t | tokens before t) under the distribution that is sampled from, nats, (R, T); 0 at t = 0."""
    logp_RTV = (policy(tokens_RT) / temperature).log_softmax(dim=-1)
    # The logits at position t − 1 predict the token at position t.
    logp_RT = logp_RTV[:, :-1].gather(2, tokens_RT[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros_like(logp_RT[:, :1]), logp_RT], dim=1)


# 2. Credit.


def group_advantages(score_BG: Tensor) -> Tensor:
    """A = (r − mean of the group)/(sd of the group + ε) (arXiv:2402.03300, section 4.1.2), (B, G).

    A group whose responses all score the same has advantage 0, because of ε: its policy gradient is 0. In float32 the
    rounded mean of equal scores may differ from them by as much as ε; then subtract one of the scores from all first.
    """
    mean_B1 = score_BG.mean(dim=1, keepdim=True)
    # The paper leaves open which sd. This one divides by G − 1, as most implementations do.
    sd_B1 = score_BG.std(dim=1, keepdim=True, unbiased=True)
    return (score_BG - mean_B1) / (sd_B1 + 1e-6)


@torch.no_grad()
def prepare(
    policy: nn.Module,
    reference: nn.Module,
    prompts: Sequence[list[int]],
    sampled: Sequence[Sequence[list[int]]],
    rewards_BG: Tensor,
    eos: int,
    settings: Settings,
) -> Batch:
    """Return the data of an iteration from the sampled tokens of each group and their rewards, before any update."""
    group_size = rewards_BG.shape[1]
    responses = [cut_after_eos(tokens, eos) for group in sampled for tokens in group]
    tokens_RT, mask_RT = pad([prompt for prompt in prompts for _ in range(group_size)], responses)
    unfinished_R = torch.tensor([response[-1] != eos for response in responses])
    score_BG = rewards_BG - settings.missing_eos_penalty * unfinished_R.view(-1, group_size)
    old_RT = token_logps(policy, tokens_RT, settings.temperature)
    ref_RT = token_logps(reference, tokens_RT, settings.temperature)
    return Batch(tokens_RT, mask_RT, old_RT, ref_RT, group_advantages(score_BG).flatten())


# 3. Updates.


def losses(policy: nn.Module, batch: Batch, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the mean KL estimate and the fraction of clipped tokens, () each."""
    logp_RT = token_logps(policy, batch.tokens, settings.temperature)
    # −min(ρA, clip(ρ, 1 − ε, 1 + ε)·A) with ρ = π/π_old: every token has the advantage of its response.
    advantage_R1 = batch.advantage[:, None]
    ratio_RT = (logp_RT - batch.old).exp()
    unclipped_RT = -ratio_RT * advantage_R1
    clipped_RT = -ratio_RT.clamp(1 - settings.clip, 1 + settings.clip) * advantage_R1
    # KL(π ‖ π_ref) per token, estimated by k3 = π_ref/π − 1 − log π_ref/π ≥ 0 (eq. 4). Gradients flow through log π.
    log_ratio_RT = batch.ref - logp_RT
    kl_RT = log_ratio_RT.exp() - 1 - log_ratio_RT
    # Eq. 3: the penalty is a term of the loss, not of the reward.
    loss_RT = torch.maximum(unclipped_RT, clipped_RT) + settings.beta * kl_RT
    if settings.per_response:  # the paper: every response has the same weight, so a token of a long one has less
        mean_R = (loss_RT * batch.mask).sum(1) / batch.mask.sum(1)
        loss = mean_R.mean()
    else:  # DAPO (arXiv:2503.14476, section 3.3): every token has the same weight
        loss = loss_RT[batch.mask].mean()
    is_clipped_RT = clipped_RT > unclipped_RT
    return loss, kl_RT[batch.mask].mean(), is_clipped_RT[batch.mask].double().mean()


def adam(policy: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimiser of the policy. It is kept for all iterations."""
    return torch.optim.Adam(policy.parameters(), lr=settings.lr, betas=settings.betas, eps=settings.eps)


def train(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    updates: Sequence[Sequence[int]],
    settings: Settings,
) -> list[Losses]:
    """Update the policy on the responses of each update and return the losses. `updates` has each once per epoch.

    Old log-probabilities and advantages stay as they were before the first update.
    """
    results = []
    for indices in updates:
        part = Batch(*(values[torch.tensor(indices)] for values in batch))
        optimizer.zero_grad()
        loss, kl, clipped_fraction = losses(policy, part, settings)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm)
        optimizer.step()
        results.append(Losses(loss.detach(), kl.detach(), clipped_fraction, norm))
    return results
