"""Shuffle buffer: rows of a stream in random order, with a bounded number of them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlhf_lab.data.rows import SourceRow


def shuffled(rows: Iterable[SourceRow], buffer: int, seed: int) -> Iterator[SourceRow]:
    """Yield every row once. The next row is sampled from a buffer, and the row that arrives takes its slot.

    A row moves forward by up to `buffer` − 1 positions and backward by any number. The order depends only on rows,
    buffer and seed.

    Args:
        rows: rows of the stream.
        buffer: number of rows in memory. If all rows fit into it, the shuffle is uniform.
        seed: seed of the order.
    """
    rng = np.random.default_rng(seed)
    waiting: list[SourceRow] = []
    for row in rows:
        if len(waiting) < buffer:
            waiting.append(row)
            continue
        index = int(rng.integers(buffer))
        yield waiting[index]
        waiting[index] = row
    # the rest of the buffer, after the last row has arrived
    for index in rng.permutation(len(waiting)):
        yield waiting[index]
