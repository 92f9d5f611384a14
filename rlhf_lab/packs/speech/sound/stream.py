"""A clip's codes as the text of a reply: one word per code, under the delay pattern of MusicGen (arXiv:2306.05284).

A clip is `codes_TK`: T frames, K codebooks. Codebook k of frame t stands in column t + k, so that when a column is
sampled, the coarser codes of its frames are known. The T + K − 1 columns follow each other, codebook 0 first. With
K = 3, the frames (1, 2, 3) and (4, 5, 6) are

    a1 b. c.   a4 b2 c.   a. b5 c3   a. b. c6

`b.` is an empty place: codebook b has not begun, or has ended. The first empty place of codebook 0 ends the clip; all
that follows is known by then, up to the codes of the other codebooks for frames that have begun.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LETTERS = "abcdefghijklmnop"
"""Of the codebooks, coarsest first."""
EMPTY = "."
WORD = re.compile(r"([a-p])([0-9]{1,9}|\.)")


def code_word(codebook: int, code: int | None) -> str:
    """The word of a code, or of an empty place."""
    return f"{LETTERS[codebook]}{EMPTY if code is None else code}"


def all_words(sizes: Sequence[int]) -> list[str]:
    """Every word of codebooks of these sizes: of each codebook the empty place, then its codes."""
    return [code_word(k, code) for k, size in enumerate(sizes) for code in (None, *range(size))]


def write_stream(codes_TK: NDArray[np.integer]) -> str:
    """The text of a clip. Raises ValueError for a clip without frames, which no stream can say."""
    frames, codebooks = codes_TK.shape
    if not frames:
        raise ValueError("a clip without frames has no stream; give it at least one frame")
    words = []
    for column in range(frames + codebooks - 1):
        for k in range(codebooks):
            frame = column - k
            words.append(code_word(k, int(codes_TK[frame, k]) if 0 <= frame < frames else None))
    return " ".join(words)


def read_stream(text: str, codebooks: int) -> NDArray[np.int64]:
    """The whole frames of a stream, (T, K): those that have a code of every codebook. A stream may be cut anywhere.

    Raises:
        ValueError: a word is no code word, is of another codebook, or has a code where the pattern has none.
    """
    codes: list[list[int]] = [[] for _ in range(codebooks)]
    for place, word in enumerate(text.split()):
        column, k = divmod(place, codebooks)
        codes[k] += _code_in_place(word, place, column, k, codes)
    frames = min(map(len, codes))
    return np.array([codebook[:frames] for codebook in codes], dtype=np.int64).T.reshape(frames, codebooks)


def _code_in_place(word: str, place: int, column: int, k: int, codes: Sequence[Sequence[int]]) -> list[int]:
    """The code that a word says, none for an empty place; `codes` are those before it, of each codebook."""
    match = WORD.fullmatch(word)
    if match is None or match[1] != LETTERS[k]:
        raise ValueError(f"word {place + 1} of the stream is {word!r}; expected a code of codebook {LETTERS[k]!r}")
    # codebook k goes on for as long as the one before it went on, a column later
    ended = column - k > len(codes[k]) or (k > 0 and len(codes[k - 1]) == len(codes[k]))
    must_be_empty = column < k or ended
    is_empty = match[2] == EMPTY
    # only codebook 0 may choose to end, and not before it has begun
    may_end = k == 0 and column > 0
    if must_be_empty and not is_empty:
        raise ValueError(f"word {place + 1} of the stream is {word!r}, where codebook {LETTERS[k]!r} is empty")
    if is_empty and not must_be_empty and not may_end:
        raise ValueError(f"word {place + 1} of the stream is {word!r}, where codebook {LETTERS[k]!r} has a code")
    return [] if is_empty else [int(match[2])]
