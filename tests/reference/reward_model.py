"""A Bradley-Terry reward model in plain PyTorch: scores of two responses, the loss of a pair, one optimiser update.

InstructGPT (arXiv:2203.02155, section 3.5), step 2. The model of preferences is that of Bradley and Terry (1952): the
probability that a person prefers the first of two responses is σ(r_1 − r_2).

Left out: ensembles, a head for length, pairs that the policy samples, and the scale of the scores, which is fixed after
training and does not change it. The learning rate is constant; sft.py has a schedule and writes AdamW out.

Shapes: B rows (a prompt and a response), P pairs, T positions. `model(tokens_BT)` returns a score (B, T) at every
position: a linear head without bias on the last hidden states of a language model. Only one of them is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

Pair = tuple[list[int], list[int], list[int]]
"""Token ids of a prompt, of the chosen response and of the rejected one."""


@dataclass(frozen=True)
class Settings:
    """Settings of the loss and the updates."""

    centering: float = 0.001  # weight of (r_chosen + r_rejected)²
    margin: float = 0.0  # amount by which the chosen score has to exceed the rejected one
    lr: float = 1e-5
    weight_decay: float = 0.0  # of matrices only
    betas: tuple[float, float] = (0.9, 0.95)  # decay rates of AdamW
    eps: float = 1e-8
    max_grad_norm: float = 1.0  # larger gradients are scaled down to this norm


def pad(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids (B, T), padded on the right, and the position of each row's last token (B,)."""
    width = max(map(len, rows))
    # Attention is causal, so no real token sees the padding to its right: any id will do.
    tokens_BT = torch.zeros(len(rows), width, dtype=torch.long)
    for b, row in enumerate(rows):
        tokens_BT[b, : len(row)] = torch.tensor(row)
    # From the length, not from the pad id: many models pad with EOS, which is also a real last token.
    last_B = torch.tensor([len(row) - 1 for row in rows])
    return tokens_BT, last_B


def scores(model: nn.Module, rows: Sequence[list[int]]) -> Tensor:
    """Return r(x, y) of each row, (B,): the score at its last real token, the first one that has read all of it."""
    tokens_BT, last_B = pad(rows)
    score_BT = model(tokens_BT)
    return score_BT[torch.arange(len(rows)), last_B]


def pair_loss(chosen_P: Tensor, rejected_P: Tensor, settings: Settings) -> Tensor:
    """Return −log σ(r_c − r_r − m) + c·(r_c + r_r)² of each pair, (P,)."""
    # −log of the probability of the observed preference (arXiv:2203.02155, eq. 1; margin m: arXiv:2307.09288, eq. 2).
    # logsigmoid instead of log(sigmoid), which is −∞ for a large negative margin.
    preference_P = -logsigmoid(chosen_P - rejected_P - settings.margin)
    # The preference depends only on differences. This term picks, of all equivalent scores, those around 0
    # (arXiv:2312.09244).
    centring_P = settings.centering * (chosen_P + rejected_P).square()
    return preference_P + centring_P


def batch_loss(model: nn.Module, pairs: Sequence[Pair], settings: Settings) -> Tensor:
    """Return the mean loss over pairs, (). All responses of the batch go through the model in one pass."""
    chosen_rows = [prompt + chosen for prompt, chosen, _ in pairs]
    rejected_rows = [prompt + rejected for prompt, _, rejected in pairs]
    chosen_P, rejected_P = scores(model, chosen_rows + rejected_rows).chunk(2)
    return pair_loss(chosen_P, rejected_P, settings).mean()


def train(model: nn.Module, steps: Sequence[Sequence[Pair]], settings: Settings) -> tuple[list[Tensor], list[Tensor]]:
    """Train on the pairs of every step. Return the loss and the gradient norm of each step, before its update."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
    )
    losses, norms = [], []
    for pairs in steps:
        optimizer.zero_grad()
        loss = batch_loss(model, pairs, settings)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm))
        optimizer.step()
        losses.append(loss.detach())
    return losses, norms
