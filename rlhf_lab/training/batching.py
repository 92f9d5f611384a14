"""Which examples make up each optimiser step. Everything follows from a seed, so the data cursor is the step number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rlhf_lab.core import ranks
from rlhf_lab.training.settings import TrainingSettings


def plan_steps(
    lengths: Sequence[int], *, batch_size: int, epochs: float, bucket_batches: int, seed: int
) -> list[list[int]]:
    """Example indices of every step.

    Each epoch is a fresh permutation. Within windows of `bucket_batches` batches, examples are sorted by length, so
    that the rows of a batch have similar length; the order of batches in a window is then shuffled again.

    Args:
        lengths: tokens of each example.
        epochs: passes over the data; ⌈epochs·N/batch_size⌉ steps are planned.
    """
    total = math.ceil(epochs * len(lengths) / batch_size)
    steps: list[list[int]] = []
    window_size = batch_size * bucket_batches
    epoch = 0
    while len(steps) < total:
        generator = torch.Generator().manual_seed((seed + epoch) % 2**63)
        order = torch.randperm(len(lengths), generator=generator).tolist()
        for begin in range(0, len(order), window_size):
            window = order[begin : begin + window_size]
            if bucket_batches > 1:
                window.sort(key=lambda i: lengths[i])
            batches = [window[i : i + batch_size] for i in range(0, len(window), batch_size)]
            steps += [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
        epoch += 1
    return steps[:total]


def epoch_steps(lengths: Sequence[int], settings: TrainingSettings, seed: int) -> list[list[int]]:
    """`plan_steps` for the batch size, epochs and bucketing of an algorithm's settings."""
    return plan_steps(
        lengths,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        bucket_batches=settings.length_bucket_batches,
        seed=seed,
    )


def micro_batches(indices: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split a step into forward passes of at most `max_tokens` padded tokens (0: one pass), longest rows together.

    Several processes share the passes: each then gets the same number of them, if there are enough rows.
    """
    if max_tokens <= 0 and ranks.world() == 1:
        return [list(indices)]
    batches: list[list[int]] = []
    for i in sorted(indices, key=lambda i: -lengths[i]):
        # rows come longest first, so the first row of a batch is as long as the batch is padded
        if batches and (max_tokens <= 0 or (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens):
            batches[-1].append(i)
        else:
            batches.append([i])

    def can_be_split_and_size(k: int) -> tuple[bool, int]:
        return len(batches[k]) > 1, len(batches[k]) * lengths[batches[k][0]]

    # a process that gets no pass has to repeat one of another's and throws it away: halve the largest batches instead
    while len(batches) % ranks.world() and any(len(batch) > 1 for batch in batches):
        largest = max(range(len(batches)), key=can_be_split_and_size)
        batch = batches[largest]
        half = len(batch) // 2
        batches[largest : largest + 1] = [batch[:half], batch[half:]]
    return batches
