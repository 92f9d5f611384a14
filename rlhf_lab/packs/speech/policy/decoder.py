"""Decodes a codec model: one step of the transformer for every K words of a stream."""

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
    """What R rows have said.

    Attributes:
        positions: keys and values of prompts and columns.
        recent_RJ: the last K + 1 words, newest last; 0 before there are any.
        column_Rd: embeddings of the words of the unfinished column, added up.
        logits_RV: of the words of that column.
        place: words of the stream so far.
    """

    positions: GroupCache
    recent_RJ: Tensor
    column_Rd: Tensor
    logits_RV: Tensor
    place: int = 0

    def keep(self, row_Bg: Tensor) -> None:
        """Drop all but these rows."""
        self.positions.keep(row_Bg)
        row_R = row_Bg.flatten()
        self.recent_RJ = self.recent_RJ[row_R]
        self.column_Rd = self.column_Rd[row_R]
        self.logits_RV = self.logits_RV[row_R]


class CodecDecoder:
    """The interface of `decoder.Decoder` for a `CodecLM`, of which `start` and `step` return logits."""

    refills = False  # all rows are at the same place of their streams

    def __init__(self, model: Any, dtype: torch.dtype, positions: int):
        self.llama = read_llama(model, dtype, positions)
        self.pattern = delay_pattern(model.config).to(model.device)

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ColumnCache]:
        """Run the prompts. Returns the logits of each one's first word (B, V), and the cache for B·group rows."""
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
        """Feed one word per row. Returns the logits of the next one, (R, V).

        Args:
            position_R: number of tokens before it, of prompt and stream.
        """
        cache.recent_RJ = torch.cat([cache.recent_RJ[:, 1:], token_R[:, None]], dim=1)
        cache.column_Rd = cache.column_Rd + F.embedding(token_R, self.llama.embed_Vd).float()
        cache.place += 1
        columns, words = divmod(cache.place, self.pattern.codebooks)
        if words == 0:
            # the column that is complete now is number `columns` − 1 behind the prompt
            column_position_R = position_R - (cache.place - 1) + columns - 1
            hidden_Rd = self.llama.advance(cache.column_Rd, column_position_R, cache.positions)
            cache.logits_RV = self.llama.logits(hidden_Rd).float()
            cache.column_Rd = torch.zeros_like(cache.column_Rd)
        return cache.logits_RV + self.pattern.allowed_SV[self._states(cache)]

    def _states(self, cache: ColumnCache) -> Tensor:
        """What kind of place comes next in each row, (R,)."""
        place_R = torch.full_like(cache.recent_RJ[:, 0], cache.place)
        recent_RJ = cache.recent_RJ
        K = self.pattern.codebooks
        return self.pattern.states(place_R, recent_RJ[:, -2], recent_RJ[:, -K], recent_RJ[:, -K - 1])

    def step_cost(self, cache: ColumnCache) -> StepCost:
        return self.llama.step_cost(cache.positions)
