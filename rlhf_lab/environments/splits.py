"""Prompts as transcripts, and the selection of test prompts. Imports no numpy, because settings of packs read it."""

from __future__ import annotations

from hashlib import blake2b

from rlhf_lab.core.errors import DataError

TEST_SHARE = 0.15
"""Fraction of prompts in the test split, by the hash of their text."""
SPLITS = ("train", "test")


def require_split(split: str) -> None:
    """Raise DataError unless the split is one of `SPLITS`."""
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")


def split_of(text: str) -> str:
    """Return "test" for about `TEST_SHARE` of all prompts, else "train"."""
    # a hash instead of a random number: a prompt has the same split in every corpus
    digest = blake2b(text.strip().encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def transcript(*turns: str) -> str:
    """Return alternating human and assistant turns as a transcript that ends where the next response starts."""
    speakers = ("Human", "Assistant")
    dialogue = "".join(f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns))
    return f"{dialogue}\n\nAssistant:"
