"""Delay pattern as a mask on logits, shared by sampler and log-probabilities; see `packs/speech/sound/stream.py`.

The pattern leaves the policy two kinds of choice: a code, or in codebook 0 the end of the clip. All other words of the
stream are determined. With the mask, a determined word has probability 1. It adds 0 to a log-probability and
contributes no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FORBIDDEN = -1e9
"""Value added to the logit of a forbidden word. It is finite, so that 0 · (difference of two such logits) is 0 in an
exact KL divergence."""


class DelayPattern:
    """Words of K codebooks in a vocabulary, and the rules of their order.

    `states` returns one of these states for each position of the stream; the right column lists the allowed words:

        0            in the prompt: every word
        1 + k        a code of codebook k
        1 + K        a code of codebook 0, or the end: its empty word, which with K = 1 is the end-of-text token
        2 + K + k    the empty word of codebook k
        2 + 2K       the end-of-text token

    Args:
        sizes: number of codes of each codebook.
        first: id of the first code word; the order of words is that of `speech.stream.all_words`.
        eos: id of the end-of-text token.
        vocabulary: number of tokens.
        min_frames: minimum number of frames of a clip.

    Attributes:
        allowed_SV: values added to the logits in each state, 0 or `FORBIDDEN`.
        empty_V: True for tokens that are empty words.
    """

    def __init__(self, sizes: Sequence[int], first: int, eos: int, vocabulary: int, min_frames: int = 1):
        self.codebooks = len(sizes)
        self.first = first
        self.min_frames = max(1, min_frames)
        # everything is forbidden unless a state allows it
        self.allowed_SV = torch.full((3 + 2 * self.codebooks, vocabulary), FORBIDDEN)
        self.empty_V = torch.zeros(vocabulary, dtype=torch.bool)
        self.allowed_SV[0] = 0.0
        # the words of a codebook are its empty word, then its codes; `empty` is the id of the empty word
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

    def states(self, position: Tensor, back_2: Tensor, back_K: Tensor, back_K1: Tensor) -> Tensor:
        """Return the state at each position of the stream, as a tensor with the shape of the arguments.

        Args:
            position: number of words of the stream before the position.
            back_2, back_K, back_K1: tokens 2, K and K + 1 words before the position; any value if there are none.
        """
        K = self.codebooks
        column = position // K
        k = position % K
        is_first = k == 0
        # codebook 0 has finished once it was empty in the previous column (K words back); codebook k follows codebook
        # k − 1 one column later (K + 1 words back)
        first_over = is_first & (column >= 1) & self.empty_V[back_K]
        others_over = ~is_first & ((column < k) | self.empty_V[back_K1])
        # later rules override earlier ones
        state = 1 + k
        state = torch.where(is_first & (column >= self.min_frames), 1 + K, state)
        state = torch.where(first_over | others_over, 2 + K + k, state)
        # the clip is complete once codebook K − 2 was empty in the previous column (2 words back): the last code of
        # codebook K − 1 was in that column
        full = first_over & (column >= K - 1) & self.empty_V[back_2]
        return torch.where(full, 2 + 2 * K, state)
