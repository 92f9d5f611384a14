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
    epoch = 0
    while len(steps) < total:
        generator = torch.Generator().manual_seed((seed + epoch) % 2**63)
        order = torch.randperm(len(lengths), generator=generator).tolist()
        window = batch_size * bucket_batches
        for begin in range(0, len(order), window):
            part = order[begin : begin + window]
            if bucket_batches > 1:
                part.sort(key=lambda i: lengths[i])
            batches = [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
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

    Several processes share the passes: there are then as many for each, as far as there are rows.
    """
    if max_tokens <= 0 and ranks.world() == 1:
        return [list(indices)]
    parts: list[list[int]] = []
    for i in sorted(indices, key=lambda i: -lengths[i]):
        if parts and (max_tokens <= 0 or (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= max_tokens):
            parts[-1].append(i)
        else:
            parts.append([i])
    while len(parts) % ranks.world() and any(len(part) > 1 for part in parts):
        largest = max(range(len(parts)), key=lambda k: (len(parts[k]) > 1, len(parts[k]) * lengths[parts[k][0]]))
        part = parts[largest]
        parts[largest : largest + 1] = [part[: len(part) // 2], part[len(part) // 2 :]]
    return parts
