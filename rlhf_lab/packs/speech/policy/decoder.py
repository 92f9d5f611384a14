"""Decoder of a codec model: one step of the transformer for each K words of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlhf_lab.packs.speech.policy.codec_lm import delay_pattern
from rlhf_lab.sampling.cache import GroupCache, StepCost
from rlhf_lab.sampling.decoder import read_llama


@dataclass
class ColumnCache:
    """Decoding state of R rows.

    Attributes:
        positions: KV cache of prompts and columns.
        recent_RJ: the last K + 1 words, newest last, padded with 0 at the start of the stream.
        column_Rd: sum of the embeddings of the words in the unfinished column.
        logits_RV: logits of the words in the unfinished column.
        position: number of words in the stream so far.
    """

    positions: GroupCache
    recent_RJ: Tensor
    column_Rd: Tensor
    logits_RV: Tensor
    position: int = 0

    def keep(self, row_Bg: Tensor) -> None:
        """Keep only these rows."""
        self.positions.keep(row_Bg)
        row_R = row_Bg.flatten()
        self.recent_RJ = self.recent_RJ[row_R]
        self.column_Rd = self.column_Rd[row_R]
        self.logits_RV = self.logits_RV[row_R]


class CodecDecoder:
    """Decoder of a `CodecLM` with the interface of `decoder.Decoder`. Here `start` and `step` return logits."""

    refills = False  # all rows must be at the same position of their streams, because they share `position`

    def __init__(self, model: Any, dtype: torch.dtype, positions: int):
        self.llama = read_llama(model, dtype, positions)
        self.pattern = delay_pattern(model.config).to(model.device)

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ColumnCache]:
        """Process the prompts.

        Returns the logits of the first word (token) of each response (B, V), and the cache of B·group rows.
        """
        # each prompt is processed once and shared by its group of rows
        hidden_Bd, positions = self.llama.start(prompts, group, device)
        logits_BV = self.llama.logits(hidden_Bd).float()
        logits_RV = logits_BV.repeat_interleave(group, dim=0)
        nothing_RJ = torch.zeros(len(logits_RV), self.pattern.codebooks + 1, dtype=torch.long, device=device)
        column_Rd = torch.zeros(len(logits_RV), hidden_Bd.shape[1], device=device)
        cache = ColumnCache(positions, nothing_RJ, column_Rd, logits_RV)
        return logits_BV + self.pattern.allowed_SV[self._states(cache)[::group]], cache

    def logits(self, x: Tensor) -> Tensor:
        return x  # `start` and `step` return logits already

    def step(self, token_R: Tensor, position_R: Tensor, cache: ColumnCache) -> Tensor:
        """Process one word (token) of each row's stream. Returns the logits of the next word, (R, V).

        Args:
            position_R: number of tokens before the word, in prompt and stream.
        """
        cache.recent_RJ = torch.cat([cache.recent_RJ[:, 1:], token_R[:, None]], dim=1)
        cache.column_Rd = cache.column_Rd + F.embedding(token_R, self.llama.embed_Vd).float()
        cache.position += 1
        columns, words = divmod(cache.position, self.pattern.codebooks)
        if words == 0:
            # the prompt has position_R − (cache.position − 1) tokens, and the completed column has index `columns` − 1
            column_position_R = position_R - (cache.position - 1) + columns - 1
            hidden_Rd = self.llama.advance(cache.column_Rd, column_position_R, cache.positions)
            cache.logits_RV = self.llama.logits(hidden_Rd).float()
            cache.column_Rd = torch.zeros_like(cache.column_Rd)
        return cache.logits_RV + self.pattern.allowed_SV[self._states(cache)]

    def _states(self, cache: ColumnCache) -> Tensor:
        """Return the state of the delay pattern at the next word (token) of each row, (R,)."""
        position_R = torch.full_like(cache.recent_RJ[:, 0], cache.position)
        recent_RJ = cache.recent_RJ
        K = self.pattern.codebooks
        # the newest word is at −1, so the word n positions before the next one is at −n
        back_2, back_K, back_K1 = recent_RJ[:, -2], recent_RJ[:, -K], recent_RJ[:, -K - 1]
        return self.pattern.states(position_R, back_2, back_K, back_K1)

    def step_cost(self, cache: ColumnCache) -> StepCost:
        return self.llama.step_cost(cache.positions)
