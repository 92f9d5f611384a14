"""PPO with a critic in plain PyTorch: rewards per token, advantages, and the updates of one iteration.

PPO (arXiv:1707.06347) for language models as in InstructGPT (arXiv:2203.02155, section 3.5), step 3. Left out:
sampling, the reward model, an adaptive β, iterations in which only the critic learns.

Shapes: R responses, T positions, V tokens of the vocabulary. `policy(tokens_RT)` returns logits (R, T, V); those at
position t predict the token at position t + 1. `critic(tokens_RT)` returns a value (R, T) of the state after reading
the token at position t. Both see the same rows: a prompt, its response, padding on the right.
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

    beta: float = 0.2  # price of one nat of KL, in units of the reward
    gamma: float = 1.0  # discount
    lam: float = 0.95  # λ of the advantages
    clip: float = 0.2  # probability ratios are kept within 1 ± clip
    value_clip: float = 0.2  # values are kept within ± this of those at sampling time
    value_weight: float = 0.1  # weight of the value loss
    missing_eos_penalty: float = 1.0  # subtracted from the reward of a response that was cut off before its EOS
    temperature: float = 1.0  # of sampling
    lr: float = 1e-6
    critic_lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of Adam
    eps: float = 1e-5
    max_grad_norm: float = 1.0  # of policy and critic separately; larger gradients are scaled down to it


class Batch(NamedTuple):
    """Responses of an iteration. Each (R, T), 0 or False outside the response, without gradients.

    Attributes:
        tokens: token ids of prompts and responses.
        mask: True for response tokens, EOS included.
        old, value: log-probability of each token and value before it, both when it was sampled.
        advantage, returns: whitened advantage of each token, and target of the critic before it.
    """

    tokens: Tensor
    mask: Tensor
    old: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor


class Losses(NamedTuple):
    """Means over the response tokens of an update, () each."""

    policy: Tensor
    value: Tensor
    clipped_fraction: Tensor


# 1. From sampled tokens to log-probabilities and values.


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


def before(values_RT: Tensor) -> Tensor:
    """Return (R, T, …) shifted by one position: what the model computes at t − 1 belongs to the token at t."""
    return torch.cat([torch.zeros_like(values_RT[:, :1]), values_RT[:, :-1]], dim=1)


def token_logps(policy: nn.Module, tokens_RT: Tensor, temperature: float) -> Tensor:
    """Return log π(token t | tokens before t), nats, (R, T), under the distribution that is sampled from."""
    logp_RTV = (policy(tokens_RT) / temperature).log_softmax(dim=-1)
    return before(logp_RTV).gather(2, tokens_RT[..., None])[..., 0]


# 2. Credit: rewards, advantages, returns.


def token_rewards(score_R: Tensor, old_RT: Tensor, ref_RT: Tensor, mask_RT: Tensor, beta: float) -> Tensor:
    """r_t = −β·(log π(y_t) − log π_ref(y_t)), plus the score at the last token (arXiv:2203.02155, eq. 2), (R, T)."""
    reward_RT = -beta * (old_RT - ref_RT) * mask_RT
    last_R = mask_RT.shape[1] - 1 - mask_RT.flip(1).int().argmax(1)
    reward_RT[torch.arange(len(score_R)), last_R] += score_R
    return reward_RT


def gae(reward_RT: Tensor, value_RT: Tensor, mask_RT: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = δ_t + γλ·A_{t+1} with δ_t = r_t + γ·V_{t+1} − V_t (arXiv:1506.02438, eq. 16), (R, T)."""
    advantage_RT = torch.zeros_like(reward_RT)
    next_value_R = next_advantage_R = torch.zeros_like(reward_RT[:, 0])
    for t in reversed(range(reward_RT.shape[1])):
        delta_R = reward_RT[:, t] + gamma * next_value_R - value_RT[:, t]
        advantage_RT[:, t] = (delta_R + gamma * lam * next_advantage_R) * mask_RT[:, t]
        # Nothing follows the last token, so value and advantage after it are 0, also if the response was cut off.
        next_value_R = value_RT[:, t] * mask_RT[:, t]
        next_advantage_R = advantage_RT[:, t]
    return advantage_RT


def whiten(advantage_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over all response tokens of the iteration (arXiv:2403.17031), (R, T)."""
    advantage_N = advantage_RT[mask_RT]  # padding must not count
    sd = advantage_N.var(unbiased=False).sqrt()  # divides by N
    return (advantage_RT - advantage_N.mean()) / (sd + 1e-8) * mask_RT


@torch.no_grad()
def prepare(
    policy: nn.Module,
    critic: nn.Module,
    reference: nn.Module,
    prompts: Sequence[list[int]],
    sampled: Sequence[list[int]],
    rewards: Sequence[float],
    eos: int,
    settings: Settings,
) -> Batch:
    """Return the data of an iteration from sampled tokens and their rewards, before the first update."""
    responses = [cut_after_eos(tokens, eos) for tokens in sampled]
    tokens_RT, mask_RT = pad(prompts, responses)
    old_RT = token_logps(policy, tokens_RT, settings.temperature) * mask_RT
    ref_RT = token_logps(reference, tokens_RT, settings.temperature) * mask_RT
    value_RT = before(critic(tokens_RT)) * mask_RT
    unfinished_R = torch.tensor([response[-1] != eos for response in responses])
    score_R = torch.tensor(rewards).to(old_RT) - settings.missing_eos_penalty * unfinished_R
    reward_RT = token_rewards(score_R, old_RT, ref_RT, mask_RT, settings.beta)
    advantage_RT = gae(reward_RT, value_RT, mask_RT, settings.gamma, settings.lam)
    return_RT = advantage_RT + value_RT  # before whitening: the critic predicts rewards in their own scale
    return Batch(tokens_RT, mask_RT, old_RT, value_RT, whiten(advantage_RT, mask_RT), return_RT)


# 3. Updates.


def losses(policy: nn.Module, critic: nn.Module, batch: Batch, settings: Settings) -> Losses:
    """Return the losses of an update: one mean over all its response tokens, whatever response they belong to."""
    logp_RT = token_logps(policy, batch.tokens, settings.temperature)
    # −min(ρA, clip(ρ, 1 − ε, 1 + ε)·A) with ρ = π/π_old (arXiv:1707.06347, eq. 7)
    ratio_RT = (logp_RT - batch.old).exp()
    unclipped_RT = -ratio_RT * batch.advantage
    clipped_RT = -ratio_RT.clamp(1 - settings.clip, 1 + settings.clip) * batch.advantage
    policy_RT = torch.maximum(unclipped_RT, clipped_RT)
    # ½·max((V − R)², (V_clip − R)²), where V_clip stays near the old value (arXiv:2005.12729, section 3)
    value_RT = before(critic(batch.tokens))
    near_old_RT = batch.value + (value_RT - batch.value).clamp(-settings.value_clip, settings.value_clip)
    error_RT = (value_RT - batch.returns).square()
    value_loss_RT = 0.5 * torch.maximum(error_RT, (near_old_RT - batch.returns).square())
    is_clipped_RT = (clipped_RT > unclipped_RT).double()
    return Losses(*(values_RT[batch.mask].mean() for values_RT in (policy_RT, value_loss_RT, is_clipped_RT)))


def adam(policy: nn.Module, critic: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimiser of policy and critic. It is kept for all iterations."""
    rates = [(policy, settings.lr), (critic, settings.critic_lr)]
    groups = [{"params": list(model.parameters()), "lr": lr} for model, lr in rates]
    return torch.optim.Adam(groups, betas=settings.betas, eps=settings.eps)


def train(
    policy: nn.Module,
    critic: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    updates: Sequence[Sequence[int]],
    settings: Settings,
) -> list[Losses]:
    """Update policy and critic on the responses of each update (every one once per epoch) and return its losses."""
    results = []
    for indices in updates:
        part = Batch(*(values_RT[torch.tensor(indices)] for values_RT in batch))
        optimizer.zero_grad()
        loss = losses(policy, critic, part, settings)
        (loss.policy + settings.value_weight * loss.value).backward()
        for model in (policy, critic):
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        results.append(Losses(*(value.detach() for value in loss)))
    return results
