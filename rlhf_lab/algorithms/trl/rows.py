"""Conversion of rlhf_lab's token rows to the tensors of TRL's trainers, and of steps to forward passes.

The encoder has already tokenised everything, EOS included, so TRL does not tokenise and its ids equal the native
engine's. TRL's own collators use one prompt for both sides of a pair; here a truncated prompt may differ between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlhf_lab.models.encoding import Row
from rlhf_lab.models.pair_rows import PairRows, shifted_rows
from rlhf_lab.models.turns import MaskedRow

BatchMaker = Callable[[Sequence[Any]], dict[str, torch.Tensor]]
"""Rows or pairs of rows of a forward pass → tensors that a trainer reads."""


def padded(rows: Sequence[Row], pad_id: int = 0) -> dict[str, torch.Tensor]:
    """Return right-padded rows, each (B, T); masks are computed from lengths."""
    token_ids = [[*prompt, *response] for prompt, response in rows]
    is_token = [[1] * len(ids) for ids in token_ids]
    is_response = [[0] * len(prompt) + [1] * len(response) for prompt, response in rows]
    width = max(map(len, token_ids))

    def pad(values: list[list[int]], filler: int) -> torch.Tensor:
        padded_rows = []
        for row in values:
            padding = [filler] * (width - len(row))
            padded_rows.append([*row, *padding])
        return torch.tensor(padded_rows)

    return {
        "input_ids": pad(token_ids, pad_id),
        "attention_mask": pad(is_token, 0),
        "completion_mask": pad(is_response, 0),
    }


def both_sides(pairs: Sequence[PairRows]) -> list[Row]:
    """Return all chosen rows, then all rejected rows."""
    return [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]


def sft_batch(rows: Sequence[MaskedRow]) -> dict[str, torch.Tensor]:
    """Return a batch whose labels are −100, except on learned response tokens."""
    batch = padded([row for row, _ in rows])
    # Not all response tokens are learned: a conversation also contains turns of other roles.
    learned = batch.pop("completion_mask").bool()
    for index, ((prompt, response), mask) in enumerate(rows):
        end = len(prompt) + len(response)
        learned[index, len(prompt) : end] &= torch.tensor(mask)
    return {**batch, "labels": batch["input_ids"].masked_fill(~learned, -100)}


def reward_batch(pairs: Sequence[PairRows], pad_id: int, margin: float) -> dict[str, torch.Tensor]:
    """Return a batch of both sides, padded with `pad_id`.

    Hugging Face scores the last token that differs from `pad_id`, so no response may end with it.
    """
    batch = padded(both_sides(pairs), pad_id)
    del batch["completion_mask"]
    return {**batch, "margin": torch.full((len(pairs),), margin)}


def kto_batch(pairs: Sequence[PairRows], max_length: int) -> dict[str, torch.Tensor]:
    """Return each side as a separate example; see `unpaired_kto_batch`."""
    liked = [True] * len(pairs) + [False] * len(pairs)
    return unpaired_kto_batch(list(zip(both_sides(pairs), liked, strict=True)), max_length)


def unpaired_kto_batch(examples: Sequence[tuple[Row, bool]], max_length: int) -> dict[str, torch.Tensor]:
    """Return single responses with their labels, and the mismatched prompts and responses of KTO's KL estimate."""
    rows = [row for row, _ in examples]
    shifted = {f"KL_{name}": values for name, values in padded(shifted_rows(rows, max_length)).items()}  # TRL's prefix
    return {**padded(rows), **shifted, "label": torch.tensor([liked for _, liked in examples])}


def unused_id(rows: Sequence[Row], vocabulary: int) -> int:
    """Return the smallest token id with which no row ends."""
    last_ids = {(response or prompt)[-1] for prompt, response in rows}
    return next(i for i in range(vocabulary) if i not in last_ids)


def deal_rows(steps: Sequence[Sequence[int]], parts: int) -> tuple[list[list[int]], int]:
    """Split every step into `parts` equal forward passes; return them and the number of dropped rows.

    A full batch splits evenly, but the last step of an epoch may not. Its remainder is dropped, because TRL gives all
    passes the same weight.
    """
    batches: list[list[int]] = []
    dropped = 0
    for step in steps:
        size = len(step) // parts
        dropped += len(step) - size * parts
        if size:
            starts = range(0, size * parts, size)
            batches += [list(step[start : start + size]) for start in starts]
    return batches, dropped
