"""Text form of a clip's codes: one word per code, in the delay pattern of MusicGen (arXiv:2306.05284).

A clip is `codes_TK`: T frames, K codebooks. Codebook k of frame t is in column t + k. Therefore the coarser codes of a
frame are known when a finer code is sampled. The text contains the T + K − 1 columns in order, codebook 0 first. With
K = 3, the frames (1, 2, 3) and (4, 5, 6) are

    a1 b. c.   a4 b2 c.   a. b5 c3   a. b. c6

`b.` is an empty word: codebook b has not started yet, or has finished. The first empty word of codebook 0 after column
0 ends the clip. After it, the pattern only leaves open the remaining codes of the other codebooks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LETTERS = "abcdefghijklmnop"
"""Letters of the codebooks, coarse to fine."""
EMPTY = "."
WORD = re.compile(r"([a-p])([0-9]{1,9}|\.)")


def code_word(codebook: int, code: int | None) -> str:
    """Return the word of a code, or the empty word of the codebook for None."""
    return f"{LETTERS[codebook]}{EMPTY if code is None else code}"


def all_words(sizes: Sequence[int]) -> list[str]:
    """Return all words of codebooks of these sizes: for each codebook the empty word, then its codes."""
    return [code_word(k, code) for k, size in enumerate(sizes) for code in (None, *range(size))]


def write_stream(codes_TK: NDArray[np.integer]) -> str:
    """Return the text of a clip. Raises ValueError for a clip without frames, because a stream has one or more."""
    frames, codebooks = codes_TK.shape
    if not frames:
        raise ValueError("a clip without frames has no stream; provide one or more frames")
    words = []
    # the last codebook needs K − 1 more columns than there are frames
    for column in range(frames + codebooks - 1):
        for k in range(codebooks):
            frame = column - k
            code = int(codes_TK[frame, k]) if 0 <= frame < frames else None
            words.append(code_word(k, code))
    return " ".join(words)


def read_stream(text: str, codebooks: int) -> NDArray[np.int64]:
    """Return the complete frames of a stream, (T, K). A stream may be cut at any word.

    A frame is complete if it has a code of each codebook.

    Raises:
        ValueError: a word is not a code word, belongs to another codebook, or does not follow the delay pattern.
    """
    codes: list[list[int]] = [[] for _ in range(codebooks)]
    for position, word in enumerate(text.split()):
        column, k = divmod(position, codebooks)
        codes[k] += _code_in_place(word, position, column, k, codes)
    # a cut stream may have codes of a frame only in some codebooks
    frames = min(map(len, codes))
    return np.array([codebook[:frames] for codebook in codes], dtype=np.int64).T.reshape(frames, codebooks)


def _code_in_place(word: str, position: int, column: int, k: int, codes: Sequence[Sequence[int]]) -> list[int]:
    """Parse a word. Returns a list with its code, empty for an empty word; `codes` has the previous codes."""
    match = WORD.fullmatch(word)
    if match is None or match[1] != LETTERS[k]:
        raise ValueError(f"word {position + 1} of the stream is {word!r}; expected a code of codebook {LETTERS[k]!r}")
    # codebook k has as many codes as codebook k − 1, one column later
    own, previous = len(codes[k]), len(codes[k - 1])
    finished = column - k > own or (k > 0 and previous == own)
    must_be_empty = column < k or finished
    is_empty = match[2] == EMPTY
    # only codebook 0 decides when the clip ends, and a clip has at least one frame
    may_end = k == 0 and column > 0
    if must_be_empty and not is_empty:
        raise ValueError(f"word {position + 1} of the stream is {word!r}; expected the empty word {LETTERS[k]}{EMPTY}")
    if is_empty and not must_be_empty and not may_end:
        raise ValueError(f"word {position + 1} of the stream is {word!r}; expected a code of codebook {LETTERS[k]!r}")
    return [] if is_empty else [int(match[2])]
