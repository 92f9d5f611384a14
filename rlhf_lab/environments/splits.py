"""Prompts as transcripts, and which of them are held out."""

from __future__ import annotations

from hashlib import blake2b

TEST_SHARE = 0.15
"""Share of prompts that are held out, by the hash of their text."""
SPLITS = ("train", "test")


def split_of(text: str) -> str:
    """ "test" for about `TEST_SHARE` of all prompts, else "train"."""
    digest = blake2b(text.strip().encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**64 else "train"


def transcript(*turns: str) -> str:
    """Human and assistant turns in alternation, ending where the next reply starts."""
    speakers = ("Human", "Assistant")
    dialogue = "".join(f"\n\n{speakers[i % 2]}: {turn}" for i, turn in enumerate(turns))
    return f"{dialogue}\n\nAssistant:"
