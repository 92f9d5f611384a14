"""Plan of the examples of each optimiser step. It depends only on a seed, so the data cursor is the step number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rlhf_lab.core import ranks
from rlhf_lab.training.settings import TrainingSettings


def plan_steps(
    lengths: Sequence[int], *, batch_size: int, epochs: float, bucket_batches: int, seed: int
) -> list[list[int]]:
    """Return the example indices of every step.

    Each epoch is a new permutation. Within windows of `bucket_batches` batches, examples are sorted by length, so that
    the rows of a batch have similar lengths. The order of the batches of a window is then shuffled.

    Args:
        lengths: tokens of each example.
        batch_size: examples per step.
        epochs: passes over the data; each ends with a smaller batch if `batch_size` does not divide their number.
        bucket_batches: batches per window; 1 turns sorting off.
    """
    whole = math.floor(epochs)
    batches_per_epoch = len(lengths) / batch_size
    # rounded, because 1.1 epochs of ten batches are 1.0000000000000009 batches after the first epoch
    total = whole * math.ceil(batches_per_epoch) + math.ceil(round((epochs - whole) * batches_per_epoch, 9))
    steps: list[list[int]] = []
    window_size = batch_size * bucket_batches
    epoch = 0
    while len(steps) < total:
        # the modulus keeps the sum within 63 bits, like the seed
        generator = torch.Generator().manual_seed((seed + epoch) % 2**63)
        order = torch.randperm(len(lengths), generator=generator).tolist()
        for start in range(0, len(order), window_size):
            window = order[start : start + window_size]
            if bucket_batches > 1:
                window.sort(key=lambda i: lengths[i])
            starts = range(0, len(window), batch_size)
            batches = [window[i : i + batch_size] for i in starts]
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            steps += [batches[i] for i in shuffled]
        epoch += 1
    return steps[:total]


def epoch_steps(lengths: Sequence[int], settings: TrainingSettings, seed: int) -> list[list[int]]:
    """Return `plan_steps` with the batch size, epochs and bucketing of an algorithm's settings."""
    return plan_steps(
        lengths,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        bucket_batches=settings.length_bucket_batches,
        seed=seed,
    )


def micro_batches(indices: Sequence[int], lengths: Sequence[int], max_tokens: int, rows: int = 1) -> list[list[int]]:
    """Split a step into forward passes of up to `max_tokens` padded tokens (0: one pass), longest examples together.

    If several processes split the passes, each gets the same number of them, provided there are enough examples.

    Args:
        lengths: tokens of the longest row of each example.
        rows: rows of an example, e.g. 2 for a pair.
    """
    max_tokens = -(-max_tokens // rows)  # rounded up, because 0 means "not split", and 1 must not become 0
    if max_tokens <= 0 and ranks.world() == 1:
        return [list(indices)]
    batches: list[list[int]] = []
    for i in sorted(indices, key=lambda i: -lengths[i]):
        # Rows are in order of decreasing length, so the first row of a batch determines its padded length.
        if batches and (max_tokens <= 0 or (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens):
            batches[-1].append(i)
        else:
            batches.append([i])

    def can_be_split_and_size(k: int) -> tuple[bool, int]:
        padded_tokens = len(batches[k]) * lengths[batches[k][0]]
        return len(batches[k]) > 1, padded_tokens

    # A process without a pass would have to repeat a pass of another one and discard the result. Splitting the largest
    # batches instead gives every process its own pass.
    while len(batches) % ranks.world() and any(len(batch) > 1 for batch in batches):
        largest = max(range(len(batches)), key=can_be_split_and_size)
        batch = batches[largest]
        half = len(batch) // 2
        batches[largest : largest + 1] = [batch[:half], batch[half:]]
    return batches
