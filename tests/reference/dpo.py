"""Direct preference optimisation (DPO) in plain PyTorch: log-ratios, the loss of a pair, one optimiser update.

Rafailov et al. (arXiv:2305.18290). The policy that maximises E[r] − β·KL(π ‖ π_ref) is π ∝ π_ref·exp(r/β). Solved for r
and inserted into the Bradley-Terry model of preferences, this gives a loss on the policy itself (eq. 4 to 7): no reward
model is trained and nothing is sampled.

Left out: other losses on pairs, selection of pairs, rounds on the policy's own responses. The learning rate is
constant; sft.py has a schedule and writes AdamW out.

Shapes: B rows (a prompt and a response), P pairs, T positions, V tokens of the vocabulary. `model(tokens_BT)` returns
logits (B, T, V); those at position t predict the token at position t + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of its response. The response ends with EOS, unless it was cut at the maximum length."""
Pair = tuple[list[int], list[int], list[int]]
"""Token ids of a prompt, of the chosen response and of the rejected one."""


@dataclass(frozen=True)
class Settings:
    """Settings of the loss and the updates."""

    beta: float = 0.1  # strength of the pull towards the reference, in 1/nats
    label_smoothing: float = 0.0  # probability that a label is flipped
    lr: float = 5e-7
    weight_decay: float = 0.0  # of matrices only
    betas: tuple[float, float] = (0.9, 0.95)  # decay rates of AdamW
    eps: float = 1e-8
    max_grad_norm: float = 1.0  # larger gradients are scaled down to this norm


# 1. Log-probabilities of responses.


def pad(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return token ids (B, T), padded on the right, and a mask (B, T) of the response tokens."""
    width = max(len(prompt) + len(response) for prompt, response in rows)
    # Attention is causal, so no real token sees the padding to its right: any id will do.
    tokens_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        tokens_BT[b, :end] = torch.tensor(prompt + response)
        mask_BT[b, len(prompt) : end] = True
    return tokens_BT, mask_BT


def response_logps(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """Return log π(y | x) = Σ_t log π(y_t | x, y_<t) of each row, nats, (B,). EOS is part of y, the prompt is not.

    It is a sum, not a mean over tokens: β·log π/π_ref is a reward only for the probability of the full response.
    """
    tokens_BT, mask_BT = pad(rows)
    logp_BTV = model(tokens_BT).log_softmax(dim=-1)
    # The logits at position t − 1 predict the token at position t.
    next_token_BT1 = tokens_BT[:, 1:, None]
    logp_BT = logp_BTV[:, :-1].gather(2, next_token_BT1)[..., 0]
    return (logp_BT * mask_BT[:, 1:]).sum(1)


def pair_logps(model: nn.Module, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Return log π of the chosen and of the rejected response of each pair, (P,) each, from one pass."""
    chosen_rows = [(prompt, chosen) for prompt, chosen, _ in pairs]
    rejected_rows = [(prompt, rejected) for prompt, _, rejected in pairs]
    chosen_P, rejected_P = response_logps(model, chosen_rows + rejected_rows).chunk(2)
    return chosen_P, rejected_P


# 2. Loss.


def pair_loss(
    chosen_P: Tensor, rejected_P: Tensor, ref_chosen_P: Tensor, ref_rejected_P: Tensor, settings: Settings
) -> Tensor:
    """Return the loss of each pair, (P,), from log-probabilities under the policy and under the reference."""
    # Implicit reward of a response: r = β·log π/π_ref (eq. 5, without the term that both responses share).
    chosen_reward_P = settings.beta * (chosen_P - ref_chosen_P)
    rejected_reward_P = settings.beta * (rejected_P - ref_rejected_P)
    margin_P = chosen_reward_P - rejected_reward_P
    # L = −log σ(margin) (eq. 7). If a label is wrong with probability ε, the expected loss also has the reversed pair
    # ("conservative DPO", https://ericmitchell.ai/cdpo.pdf).
    epsilon = settings.label_smoothing
    return -(1 - epsilon) * logsigmoid(margin_P) - epsilon * logsigmoid(-margin_P)


def batch_loss(policy: nn.Module, reference: nn.Module, pairs: Sequence[Pair], settings: Settings) -> Tensor:
    """Return the mean loss over pairs, ()."""
    with torch.no_grad():  # the reference is frozen
        ref_chosen_P, ref_rejected_P = pair_logps(reference, pairs)
    chosen_P, rejected_P = pair_logps(policy, pairs)
    return pair_loss(chosen_P, rejected_P, ref_chosen_P, ref_rejected_P, settings).mean()


# 3. Updates.


def train(
    policy: nn.Module, reference: nn.Module, steps: Sequence[Sequence[Pair]], settings: Settings
) -> tuple[list[Tensor], list[Tensor]]:
    """Train on the pairs of every step; `reference` is a copy of the policy before the first one.

    Returns:
        Loss and gradient norm of each step, before its update. The first loss is log 2: policy and reference are equal.
    """
    matrices = [parameter for parameter in policy.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in policy.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
    )
    losses, norms = [], []
    for pairs in steps:
        optimizer.zero_grad()
        loss = batch_loss(policy, reference, pairs, settings)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm))
        optimizer.step()
        losses.append(loss.detach())
    return losses, norms
