"""Passes over many rows: each row once, in batches below the limit, under its own index."""

from __future__ import annotations

from pathlib import Path

import torch
from support import checked

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.passes import over_rows
from rlhf_lab.training.run import Run

ROWS = [([1], [2]), ([1, 2, 3], [4, 5]), ([1, 2], [3]), ([1], [2, 3, 4])]  # 2, 5, 3 and 4 tokens


def test_every_row_is_computed_once_and_under_its_own_index() -> None:
    widths = []

    def responses(batch: TokenBatch) -> list[int]:
        widths.append(tuple(batch.tokens_BT.shape))
        return (batch.length_B - batch.prompt_len_B).tolist()

    found = {}
    for indices, result in over_rows(ROWS, responses, 8, "cpu"):
        found |= dict(zip(indices, result, strict=True))
    assert found == {0: 1, 1: 2, 2: 1, 3: 3}
    assert widths == [(1, 5), (2, 4), (1, 2)]  # longest first, at most 8 padded tokens


def test_a_row_longer_than_the_limit_has_a_batch_of_its_own() -> None:
    assert [indices for indices, _ in over_rows(ROWS, id, 1, "cpu")] == [[1], [3], [2], [0]]


def test_rounded_weights_are_not_kept_between_blocks() -> None:
    """Autocast keeps what it has rounded until its context ends: a model in bfloat16, whatever is checkpointed."""
    config = checked("sft", "model=micro", "runtime.dtype=bfloat16", "runtime.device=cpu")
    with Run(Path("nowhere"), config, {}).autocast():
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_cache_enabled()
