"""Random streams of the worlds."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np


def random_stream(seeds: Sequence[int], purpose: str, split: str) -> np.random.Generator:
    """Return a random stream that is independent for each purpose and split."""
    # crc32 and not `hash`, which differs between Python processes
    return np.random.default_rng([*seeds, crc32(f"{purpose}/{split}".encode())])
