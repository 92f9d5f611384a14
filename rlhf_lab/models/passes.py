"""Forward passes over many rows: batches of similar length, divided between the processes of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.models.divided import at_hand
from rlhf_lab.models.encoding import Row, TokenBatch, length_parts

Result = TypeVar("Result")


def over_rows(
    rows: Sequence[Row],
    compute: Callable[[TokenBatch], Result],
    max_tokens: int,
    device: str,
    models: Sequence[nn.Module] = (),
    masks: Sequence[Sequence[bool]] | None = None,
) -> Iterator[tuple[list[int], Result]]:
    """(indices of rows, the result of `compute` for them), longest rows first, in batches of similar length.

    Every process computes its share and gets all results, which must therefore be plain values or on the CPU.

    Args:
        max_tokens: most padded tokens in a batch.
        models: that `compute` uses; those that live in host memory are brought to the device meanwhile.
        masks: which tokens of each reply count; see `TokenBatch.from_rows`.
    """

    def compute_rows(indices: list[int]) -> Result:
        batch_masks = None if masks is None else [masks[i] for i in indices]
        return compute(TokenBatch.from_rows([rows[i] for i in indices], device, batch_masks))

    with at_hand(models):
        batches = length_parts(rows, max_tokens)
        if ranks.world() == 1:
            for indices in batches:
                yield indices, compute_rows(indices)
            return
        results = []
        for indices, counts in ranks.deal(batches):
            result = compute_rows(indices)  # also where it does not count: a divided model needs all processes
            if counts:
                results.append((indices, result))
    yield from ranks.gather(results)
