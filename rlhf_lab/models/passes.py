"""Forward passes over many rows: batches of similar length, distributed over the processes of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.progress import progress, tracked
from rlhf_lab.models.encoding import Row, TokenBatch, length_parts
from rlhf_lab.models.sharded import at_hand

Result = TypeVar("Result")


def over_rows(
    rows: Sequence[Row],
    compute: Callable[[TokenBatch], Result],
    max_tokens: int,
    device: str,
    models: Sequence[nn.Module] = (),
    masks: Sequence[Sequence[bool]] | None = None,
    title: str = "forward passes",
) -> Iterator[tuple[list[int], Result]]:
    """Yield (row indices, result of `compute` for them), in batches of similar length, longest rows first.

    Every process computes part of the batches and receives all results. Results must be plain values or on the CPU.

    Args:
        max_tokens: maximum number of padded tokens in a batch.
        models: models that `compute` uses; those in host memory are moved to the device meanwhile.
        masks: response tokens of each row that count; see `TokenBatch.from_rows`.
        title: what the passes compute, for the progress bar.
    """

    def compute_rows(indices: list[int]) -> Result:
        batch_masks = None if masks is None else [masks[i] for i in indices]
        return compute(TokenBatch.from_rows([rows[i] for i in indices], device, batch_masks))

    # models stay on the device for all batches, instead of moving for each of them
    with at_hand(models):
        batches = length_parts(rows, max_tokens)
        if ranks.world() == 1:
            for indices in tracked(batches, title):
                yield indices, compute_rows(indices)
            return
        results = []
        with progress(title, len(batches)) as ticker:
            for indices, counts in ranks.deal_round_robin(batches):
                result = compute_rows(indices)  # also if it does not count: a sharded model needs all processes
                if counts:
                    results.append((indices, result))
                ticker.advance(min(ranks.world(), ticker.total - ticker.done))
    yield from ranks.gather(results)
