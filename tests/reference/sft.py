"""Supervised fine-tuning (SFT) in plain PyTorch: the loss of a batch, and one optimiser update written out.

InstructGPT (arXiv:2203.02155, section 3.5), step 1: the model imitates the responses of the data.

Left out: chat templates, conversations with several learned turns, half precision, several devices.

Shapes: B rows (a prompt and its response), T positions, V tokens of the vocabulary. `model(tokens_BT)` returns logits
(B, T, V); those at position t predict the token at position t + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of its response. The response ends with EOS, unless it was cut at the maximum length."""


@dataclass(frozen=True)
class Settings:
    """Settings of the updates."""

    lr: float = 2e-5  # peak learning rate
    warmup_fraction: float = 0.05  # fraction of the steps with a linearly rising learning rate
    final_lr_fraction: float = 0.02  # fraction of the peak at which the cosine decay ends
    weight_decay: float = 0.0  # of matrices only
    beta_1: float = 0.9  # decay rates and ε of AdamW
    beta_2: float = 0.95
    eps: float = 1e-8
    max_grad_norm: float = 1.0  # larger gradients are scaled down to this norm


# 1. From rows to the loss.


def pad(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return token ids (B, T), padded on the right, and a mask (B, T) of the response tokens."""
    width = max(len(prompt) + len(response) for prompt, response in rows)
    # Attention is causal, so no real token sees the padding to its right: any id will do, and no attention mask is
    # needed. Positions start at 0 in every row.
    tokens_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        tokens_BT[b, :end] = torch.tensor(prompt + response)
        # The response is learned with its EOS. The prompt and the padding are not.
        mask_BT[b, len(prompt) : end] = True
    return tokens_BT, mask_BT


def token_logps(model: nn.Module, tokens_BT: Tensor) -> Tensor:
    """Return log π(token t | tokens before t), nats, (B, T); 0 at t = 0, where nothing predicts the token."""
    logits_BTV = model(tokens_BT)
    logp_BTV = logits_BTV.log_softmax(dim=-1)
    # The logits at position t − 1 predict the token at position t.
    next_token_BT1 = tokens_BT[:, 1:, None]
    logp_BT = logp_BTV[:, :-1].gather(2, next_token_BT1)[..., 0]
    first_B1 = torch.zeros_like(logp_BT[:, :1])
    return torch.cat([first_B1, logp_BT], dim=1)


def sft_loss(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """L = −1/N · Σ log π(y_t | x, y_<t), the mean over the N response tokens of all rows, ().

    Every token has the same weight, so a long response counts more than a short one. A mean over rows of means over
    tokens would be another loss, and so would a mean over micro-batches of their means.
    """
    tokens_BT, mask_BT = pad(rows)
    logp_BT = token_logps(model, tokens_BT)
    return -(logp_BT * mask_BT).sum() / mask_BT.sum()


# 2. One update: gradient, clipping, learning rate, AdamW.


def learning_rate(step: int, total_steps: int, settings: Settings) -> float:
    """Return the rate of a step, counted from 0: linear warm-up, then a cosine (arXiv:1608.03983, eq. 5)."""
    warmup = math.ceil(settings.warmup_fraction * total_steps)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    cosine = (1 + math.cos(math.pi * progress)) / 2  # from 1 down to 0
    return settings.lr * (settings.final_lr_fraction + (1 - settings.final_lr_fraction) * cosine)


def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """g ← g · min(1, max_norm / ‖g‖) with the norm over all parameters together (arXiv:1211.5063, algorithm 1).

    Returns:
        ‖g‖ before clipping, ().
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # 1e-6 as in PyTorch: no division by 0
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


class AdamW:
    """AdamW (arXiv:1711.05101, algorithm 2)."""

    def __init__(self, model: nn.Module, settings: Settings):
        self.settings = settings
        self.parameters = list(model.parameters())
        self.steps = 0
        self.m = [torch.zeros_like(parameter) for parameter in self.parameters]  # mean of the gradients
        self.v = [torch.zeros_like(parameter) for parameter in self.parameters]  # mean of their squares

    @torch.no_grad()
    def step(self, lr: float) -> None:
        beta_1, beta_2 = self.settings.beta_1, self.settings.beta_2
        self.steps += 1
        for parameter, m, v in zip(self.parameters, self.m, self.v, strict=True):
            if parameter.grad is None:
                continue
            # θ ← θ − lr·λ·θ: the decay is not part of the gradient. Norms and biases (vectors) have none.
            if parameter.ndim >= 2:
                parameter.mul_(1 - lr * self.settings.weight_decay)
            # m ← β₁·m + (1 − β₁)·g and v ← β₂·v + (1 − β₂)·g²
            m.mul_(beta_1).add_(parameter.grad, alpha=1 - beta_1)
            v.mul_(beta_2).add_(parameter.grad.square(), alpha=1 - beta_2)
            # Both means start at 0. Dividing by the weight that they have received so far removes this bias.
            m_hat = m / (1 - beta_1**self.steps)
            v_hat = v / (1 - beta_2**self.steps)
            # θ ← θ − lr·m̂/(√v̂ + ε)
            parameter.sub_(lr * m_hat / (v_hat.sqrt() + self.settings.eps))


def train(model: nn.Module, steps: Sequence[Sequence[Row]], settings: Settings) -> tuple[list[Tensor], list[Tensor]]:
    """Train on the rows of every step. Return the loss and the gradient norm of each step, before its update."""
    optimizer = AdamW(model, settings)
    losses, norms = [], []
    for step, rows in enumerate(steps):
        model.zero_grad()
        loss = sft_loss(model, rows)
        loss.backward()
        norms.append(clip_gradients(optimizer.parameters, settings.max_grad_norm))
        optimizer.step(learning_rate(step, len(steps), settings))
        losses.append(loss.detach())
    return losses, norms
