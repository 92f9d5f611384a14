"""Rows of a stream in a random order, with a bounded number of them in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlhf_lab.data.rows import Row


def shuffled(rows: Iterable[Row], buffer: int, seed: int) -> Iterator[Row]:
    """Every row once: the next one is drawn from a buffer, and the row that arrives takes its place.

    A row comes at most `buffer` − 1 places earlier than in the source; it may come any number of places later. Rows,
    buffer and seed decide the order.

    Args:
        buffer: rows in memory; as many as there are rows is a uniform shuffle.
    """
    rng = np.random.default_rng(seed)
    waiting: list[Row] = []
    for row in rows:
        if len(waiting) < buffer:
            waiting.append(row)
            continue
        index = int(rng.integers(buffer))
        yield waiting[index]
        waiting[index] = row
    for index in rng.permutation(len(waiting)):
        yield waiting[index]
