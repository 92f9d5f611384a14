"""The loop of reward models of clips: Bradley-Terry on pairs, AdamW, one warm-up and a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import NumericError
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.training.optim import lr_scale

PairScores = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Indices of B pairs → scores of their chosen and of their rejected clips, (B,) each, differentiable."""
WARMUP_FRACTION = 0.05
FINAL_LR_FRACTION = 0.02
MAX_GRAD_NORM = 1.0


def train_on_pairs(
    scores: PairScores,
    groups: Sequence[dict[str, Any]],
    *,
    pairs: int,
    epochs: float,
    batch_size: int,
    weight_decay: float,
    seed: int,
    log: Callable[[int, float, float], None] = lambda step, loss, accuracy: None,
    title: str = "",
) -> None:
    """Minimise −log σ(r_chosen − r_rejected), the mean over the pairs of a step.

    Args:
        groups: of AdamW: parameters with their peak learning rate.
        log: called after each pass over the pairs, and at the end, with step, mean loss and mean training accuracy
            since the last call.
        title: what the work is called while it is shown; not shown without.
    """
    optimizer = torch.optim.AdamW(list(groups), weight_decay=weight_decay)
    peaks = [group["lr"] for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    batches = epoch_batches(pairs, epochs, batch_size, seed)
    steps_per_epoch = math.ceil(pairs / batch_size)
    losses: list[float] = []
    wins: list[float] = []
    with progress(title or "training", len(batches)) as ticker:
        for step, indices in enumerate(batches):
            scale = lr_scale(step, len(batches), warmup_fraction=WARMUP_FRACTION, final_fraction=FINAL_LR_FRACTION)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * scale
            chosen_B, rejected_B = scores(indices)
            loss_B = bradley_terry(chosen_B, rejected_B)
            loss = loss_B.mean()
            if not torch.isfinite(loss):
                raise NumericError(f"the loss of step {step + 1} is {loss.item()}; lower algorithm.lr")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            losses += loss_B.tolist()
            wins += (chosen_B > rejected_B).double().tolist()
            if (step + 1) % steps_per_epoch == 0 or step + 1 == len(batches):
                log(step + 1, sum(losses) / len(losses), sum(wins) / len(wins))
                losses, wins = [], []
            ticker.advance()


def epoch_batches(pairs: int, epochs: float, batch_size: int, seed: int) -> list[list[int]]:
    """Indices of the pairs of each step: every epoch in an order of its own; the last epoch may be cut short."""
    generator = torch.Generator().manual_seed(seed)
    total = max(1, round(pairs * epochs))
    batches: list[list[int]] = []
    while total > 0:
        order = torch.randperm(pairs, generator=generator).tolist()[:total]
        batches += [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
        total -= len(order)
    return batches
