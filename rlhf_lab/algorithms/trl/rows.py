"""Token rows of the lab as the tensors TRL's trainers read, and the steps they go through.

The encoder has tokenised everything, EOS included, so TRL tokenises nothing and its ids are the native engine's. TRL's
own collators give both sides of a pair one prompt; here a prompt that had to be cut may differ between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlhf_lab.models.encoding import Row
from rlhf_lab.models.pair_rows import PairRows, mismatched_rows, shifted_rows
from rlhf_lab.models.turns import MaskedRow

BatchMaker = Callable[[Sequence[Any]], dict[str, torch.Tensor]]
"""Rows or pairs of rows of a forward pass → the tensors that a trainer reads."""


def padded(rows: Sequence[Row], pad_id: int = 0) -> dict[str, torch.Tensor]:
    """Right-padded rows, each (B, T); masks come from lengths."""
    width = max(len(prompt) + len(reply) for prompt, reply in rows)

    def pad(values: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([[*row, *([filler] * (width - len(row)))] for row in values])

    return {
        "input_ids": pad([[*prompt, *reply] for prompt, reply in rows], pad_id),
        "attention_mask": pad([[1] * (len(prompt) + len(reply)) for prompt, reply in rows], 0),
        "completion_mask": pad([[0] * len(prompt) + [1] * len(reply) for prompt, reply in rows], 0),
    }


def both_sides(pairs: Sequence[PairRows]) -> list[Row]:
    """All chosen rows, then all rejected rows."""
    return [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]


def sft_batch(rows: Sequence[MaskedRow]) -> dict[str, torch.Tensor]:
    """Labels are −100 outside what is learned of the replies."""
    batch = padded([row for row, _ in rows])
    learned = batch.pop("completion_mask").bool()
    for number, ((prompt, reply), mask) in enumerate(rows):
        learned[number, len(prompt) : len(prompt) + len(reply)] &= torch.tensor(mask)
    return {**batch, "labels": batch["input_ids"].masked_fill(~learned, -100)}


def reward_batch(pairs: Sequence[PairRows], pad_id: int, margin: float) -> dict[str, torch.Tensor]:
    """Rows end in `pad_id`, which ends no reply: Hugging Face scores the last token that is another one."""
    batch = padded(both_sides(pairs), pad_id)
    del batch["completion_mask"]
    return {**batch, "margin": torch.full((len(pairs),), margin)}


def kto_batch(pairs: Sequence[PairRows], max_length: int) -> dict[str, torch.Tensor]:
    """Each side is an example of its own; the mismatched rows are those of the native KL estimate."""
    sides = both_sides(pairs)
    mismatched = {f"KL_{name}": values for name, values in padded(mismatched_rows(pairs, max_length)).items()}
    return {**padded(sides), **mismatched, "label": torch.arange(len(sides)) < len(pairs)}


def unpaired_kto_batch(examples: Sequence[tuple[Row, bool]], max_length: int) -> dict[str, torch.Tensor]:
    """Single replies with their labels; the mismatched rows are those of the native KL estimate."""
    rows = [row for row, _ in examples]
    shifted = {f"KL_{name}": values for name, values in padded(shifted_rows(rows, max_length)).items()}
    return {**padded(rows), **shifted, "label": torch.tensor([liked for _, liked in examples])}


def unused_id(rows: Sequence[Row], vocabulary: int) -> int:
    """The smallest token id that ends no row."""
    last_ids = {(reply or prompt)[-1] for prompt, reply in rows}
    return next(i for i in range(vocabulary) if i not in last_ids)


def divided(steps: Sequence[Sequence[int]], parts: int) -> tuple[list[list[int]], int]:
    """Every step cut into `parts` equal forward passes, and how many rows that leaves out.

    A batch divides evenly; what is left of an epoch in its last step may not, and its remainder is dropped, because TRL
    weighs all parts the same.
    """
    batches: list[list[int]] = []
    dropped = 0
    for step in steps:
        size = len(step) // parts
        dropped += len(step) - size * parts
        if size:
            batches += [list(step[i * size : (i + 1) * size]) for i in range(parts)]
    return batches, dropped
