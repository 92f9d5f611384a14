"""Which code words may follow in a stream, for sampler and log-probability alike: see `packs/speech/sound/stream.py`.

The pattern leaves the policy two kinds of choice: a code, and in codebook 0 the end of the clip. Every other place of
the stream is known. A model that allows only what the pattern allows gives a known word probability 1: it adds 0 to a
log-probability, and no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FORBIDDEN = -1e9
"""Added to the logit of a word that cannot follow. Finite, so that 0·(difference of two) is 0 in an exact KL."""


class DelayPattern:
    """The words of K codebooks in a vocabulary, and the rules of their order.

    A place of the stream is one of these, by the number that `states` gives:

        0            in the prompt: every word
        1 + k        a code of codebook k
        1 + K        a code of codebook 0, or the end: its empty place, which with K = 1 is the end-of-text token
        2 + K + k    the empty place of codebook k
        2 + 2K       the end-of-text token

    Args:
        sizes: codes of each codebook.
        first: id of the first code word; words follow each other as in `speech.stream.all_words`.
        eos: id of the end-of-text token.
        vocabulary: number of tokens.
        min_frames: a clip does not end before it has as many.

    Attributes:
        allowed_SV: what is added to the logits in each kind of place, 0 or `FORBIDDEN`.
        empty_V: whether a token is an empty place.
    """

    def __init__(self, sizes: Sequence[int], first: int, eos: int, vocabulary: int, min_frames: int = 1):
        self.codebooks = len(sizes)
        self.first = first
        self.min_frames = max(1, min_frames)
        self.allowed_SV = torch.full((3 + 2 * self.codebooks, vocabulary), FORBIDDEN)
        self.empty_V = torch.zeros(vocabulary, dtype=torch.bool)
        self.allowed_SV[0] = 0.0
        empty = first
        for k, size in enumerate(sizes):
            self.empty_V[empty] = True
            codes = slice(empty + 1, empty + 1 + size)
            self.allowed_SV[1 + k, codes] = 0.0
            self.allowed_SV[2 + self.codebooks + k, empty] = 0.0
            if k == 0:
                self.allowed_SV[1 + self.codebooks, codes] = 0.0
                self.allowed_SV[1 + self.codebooks, eos if self.codebooks == 1 else empty] = 0.0
            empty += 1 + size
        self.allowed_SV[2 + 2 * self.codebooks, eos] = 0.0

    def to(self, device: torch.device) -> DelayPattern:
        self.allowed_SV = self.allowed_SV.to(device)
        self.empty_V = self.empty_V.to(device)
        return self

    def states(self, place: Tensor, back_2: Tensor, back_K: Tensor, back_K1: Tensor) -> Tensor:
        """The kind of each place, of the shape of the arguments.

        Args:
            place: number of words of the stream before it.
            back_2, back_K, back_K1: the tokens 2, K and K + 1 words before it; anything where there are none.
        """
        K = self.codebooks
        column = place // K
        k = place % K
        is_first = k == 0
        # codebook k goes on while the one before it did, a column earlier; codebook 0 until it was empty once
        first_over = is_first & (column >= 1) & self.empty_V[back_K]
        others_over = ~is_first & ((column < k) | self.empty_V[back_K1])
        state = 1 + k
        state = torch.where(is_first & (column >= self.min_frames), 1 + K, state)
        state = torch.where(first_over | others_over, 2 + K + k, state)
        # the clip is whole once the last codebook but one was empty: its last codes stood beside that place
        whole = first_over & (column >= K - 1) & self.empty_V[back_2]
        return torch.where(whole, 2 + 2 * K, state)
