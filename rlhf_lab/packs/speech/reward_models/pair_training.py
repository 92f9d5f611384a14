"""Training loop of reward models of clips: Bradley-Terry loss on pairs, AdamW, warm-up and cosine schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.progress import progress
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.packs.speech.reward_models.settings import PairwiseReward
from rlhf_lab.training.optim import lr_scale

PairScores = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Function from indices of B pairs to differentiable scores of their chosen and their rejected clips, (B,) each."""
WARMUP_FRACTION = 0.05
FINAL_LR_FRACTION = 0.02
MAX_GRAD_NORM = 1.0


def train_on_pairs(
    scores: PairScores,
    groups: Sequence[dict[str, Any]],
    settings: PairwiseReward,
    pairs: int,
    *,
    seed: int,
    log: Callable[[int, float, float], None],
    title: str,
) -> None:
    """Minimise −log σ(r_chosen − r_rejected), averaged over the pairs of a step.

    Args:
        groups: parameter groups of AdamW, each with its peak learning rate.
        log: function called after each epoch and at the end. It receives the step, the mean loss and the mean training
            accuracy since the previous call.
        title: title of the progress bar.
    """
    optimizer = torch.optim.AdamW(list(groups), weight_decay=settings.weight_decay)
    # stored before the loop, which overwrites the learning rates with scaled values
    peaks = [group["lr"] for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    batches = epoch_batches(pairs, settings.epochs, settings.batch_size, seed)
    steps_per_epoch = math.ceil(pairs / settings.batch_size)
    losses: list[float] = []
    wins: list[float] = []
    with progress(title, len(batches)) as ticker:
        for step, indices in enumerate(batches):
            scale = lr_scale(step, len(batches), warmup_fraction=WARMUP_FRACTION, final_fraction=FINAL_LR_FRACTION)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * scale
            chosen_B, rejected_B = scores(indices)
            loss_B = bradley_terry(chosen_B, rejected_B)
            loss = loss_B.mean()
            if not torch.isfinite(loss):
                raise NumericError(f"the loss at step {step + 1} is {loss.item()}; lower algorithm.lr")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            losses += loss_B.tolist()
            wins += (chosen_B > rejected_B).double().tolist()
            # after each epoch, and after the last step, which may be within an epoch
            if (step + 1) % steps_per_epoch == 0 or step + 1 == len(batches):
                log(step + 1, sum(losses) / len(losses), sum(wins) / len(wins))
                losses, wins = [], []
            ticker.advance()


def epoch_batches(pairs: int, epochs: float, batch_size: int, seed: int) -> list[list[int]]:
    """Return the indices of the pairs of each step. Each epoch has a new order; the last epoch may be incomplete."""
    generator = torch.Generator().manual_seed(seed)
    total = max(1, round(pairs * epochs))
    batches: list[list[int]] = []
    while total > 0:
        # a new order for each epoch; the last epoch takes the first `total` pairs
        order = torch.randperm(pairs, generator=generator).tolist()[:total]
        batches += [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        total -= len(order)
    return batches
