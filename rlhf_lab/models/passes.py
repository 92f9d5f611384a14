"""Forward passes over many rows: batches of similar length, divided between the processes of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.models.divided import at_hand
from rlhf_lab.models.encoding import Row, TokenBatch, length_parts

Found = TypeVar("Found")


def over_rows(
    rows: Sequence[Row],
    compute: Callable[[TokenBatch], Found],
    max_tokens: int,
    device: str,
    models: Sequence[nn.Module] = (),
) -> Iterator[tuple[list[int], Found]]:
    """(indices of rows, what `compute` finds for them), longest rows first, at most `max_tokens` padded tokens each.

    Every process gets all of it, and computes its share; values must then be plain or on the CPU.

    Args:
        models: that `compute` uses; those that live in host memory are brought to the device meanwhile.
    """
    with at_hand(models):
        parts = length_parts(rows, max_tokens)
        if ranks.world() == 1:
            for part in parts:
                yield part, compute(TokenBatch.from_rows([rows[i] for i in part], device))
            return
        found = []
        for part, mine in ranks.deal(parts):
            value = compute(TokenBatch.from_rows([rows[i] for i in part], device))
            if mine:
                found.append((part, value))
    yield from ranks.gather(found)
