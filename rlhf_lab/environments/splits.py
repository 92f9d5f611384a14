"""Prompts as transcripts, the selection of test prompts, and random streams."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from zlib import crc32

import numpy as np

TEST_SHARE = 0.15
"""Fraction of prompts in the test split, by the hash of their text."""
SPLITS = ("train", "test")


def split_of(text: str) -> str:
    """Return "test" for about `TEST_SHARE` of all prompts, else "train"."""
    # a hash instead of a random number: a prompt has the same split in every corpus
    digest = blake2b(text.strip().encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def random_stream(seeds: Sequence[int], purpose: str, split: str) -> np.random.Generator:
    """Return a random stream that is independent for each purpose and split."""
    # crc32 and not `hash`, which differs between Python processes
    return np.random.default_rng([*seeds, crc32(f"{purpose}/{split}".encode())])


def transcript(*turns: str) -> str:
    """Return alternating human and assistant turns as a transcript that ends where the next response starts."""
    speakers = ("Human", "Assistant")
    parts = [f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns)]
    dialogue = "".join(parts)
    return f"{dialogue}\n\nAssistant:"
