"""What an on-policy iteration trains on: sampled episodes, their scores, and per-token quantities laid end to end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.transfer import to_device
from rlhf_lab.models.encoding import Row, TokenBatch


@dataclass
class Group:
    """G episodes of one task.

    Attributes:
        rewards, scores: what the reward said, and what training sees after shaping; NaN where unscored.
        early: of each episode the part of its score that each of its turns but the last earned; empty where only whole
            episodes are scored.
        greedy: shaped score of the greedy reply, for `remax`; `greedy_tokens` is its length.
        pool: the group as it was sampled, where a filter left these episodes of it.
    """

    task: Task
    episodes: list[Episode]
    rewards: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    early: list[list[float]] = field(default_factory=list)
    greedy: float | None = None
    greedy_tokens: int = 0
    pool: Group | None = None

    @property
    def sampled(self) -> Group:
        """All episodes that were sampled."""
        return self.pool or self

    def keep(self, indices: Sequence[int]) -> Group:
        """The group with only these episodes; the group as it was sampled stays in `pool`."""
        return replace(
            self,
            episodes=[self.episodes[i] for i in indices],
            rewards=[self.rewards[i] for i in indices],
            scores=[self.scores[i] for i in indices],
            early=[self.early[i] for i in indices] if self.early else [],
            pool=self,
        )

    @property
    def wasted(self) -> bool:
        """True when all scores, which advantages are computed from, are the same: comparing them teaches nothing."""
        return _same(self.scores)

    @property
    def undecided(self) -> bool:
        """True when the reward prefers no episode, whether or not penalties do."""
        return _same(self.rewards) or self.wasted


def _same(values: Sequence[float]) -> bool:
    """True when there are no two different values; NaN is the absence of one."""
    known = [value for value in values if np.isfinite(value)]
    return not known or max(known) - min(known) <= 1e-6 * (1 + abs(known[0]))


def episodes_of(groups: Iterable[Group]) -> list[Episode]:
    """The episodes of all groups, those of a group side by side."""
    return [episode for group in groups for episode in group.episodes]


def episode_state(episode: Episode) -> dict[str, Any]:
    """An episode as plain values, without its task."""
    return {
        "prompt": episode.prompt,
        "response": episode.response,
        "prompt_ids": episode.prompt_ids,
        "segments": [[part.token_ids, part.sampled, part.logps, part.reward] for part in episode.segments],
        "ended": episode.ended,
    }


def episode_from(task: Task, state: dict[str, Any]) -> Episode:
    """Inverse of `episode_state`."""
    segments = tuple(Segment(*values) for values in state["segments"])
    return Episode(task, state["prompt"], state["response"], state["prompt_ids"], segments, state["ended"])


@dataclass
class Micro:
    """One forward pass: token rows and what is known about each reply token, (N,) in the order of `batch.targets()`."""

    batch: TokenBatch
    tokens: dict[str, Tensor]
    weight_N: Tensor


@dataclass
class Imitation:
    """One forward pass over corpus replies, whose −log π is multiplied by `weight` (PPO-ptx)."""

    batch: TokenBatch
    weight: float


@dataclass
class Experience:
    """Scored episodes as token rows.

    Attributes:
        rows: (prompt, everything behind it) as token ids.
        tokens: name → (N,) over the sampled tokens of all rows: `old`, `ref`, `advantage`, `value`, `return`; `drawn`,
            log π of the older policy that sampled them, with `staleness`; `early`, the score that turns before the last
            one earned, on the last token of each.
        masks: which tokens behind the prompt were sampled; None where all were.
    """

    rows: list[Row]
    tokens: dict[str, Tensor]
    masks: list[list[bool]] | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(prompt) + len(reply) for prompt, reply in self.rows]
        if self.masks is None:
            self.sampled_lengths = [len(reply) for _, reply in self.rows]
        else:
            self.sampled_lengths = [sum(mask) for mask in self.masks]
        self.begin = [0, *accumulate(self.sampled_lengths)]

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Experience:
        """Episodes as rows, nothing known of their tokens yet."""
        rows = [(episode.prompt_ids, episode.token_ids) for episode in episodes]
        masks = [episode.sampled for episode in episodes]
        return cls(rows, {}, None if all(map(all, masks)) else masks)

    def index(self, row_indices: Sequence[int]) -> Tensor:
        """Positions of the tokens of these rows, in the given order."""
        return torch.cat([torch.arange(self.begin[i], self.begin[i + 1]) for i in row_indices])

    def lengths_N(self) -> Tensor:
        """Number of sampled tokens of each token's row, (N,)."""
        length_R = torch.tensor(self.sampled_lengths)
        return length_R.repeat_interleave(length_R)

    def last(self) -> Tensor:
        """Position of each row's last token, (R,)."""
        return torch.tensor(self.begin[1:]) - 1

    def padded(self, values_N: Tensor) -> Tensor:
        """(N,) → (R, T), zeros beyond each row."""
        out = values_N.new_zeros(len(self.rows), max(self.sampled_lengths))
        out[self.mask()] = values_N
        return out

    def mask(self) -> Tensor:
        """(R, T), True where a token is."""
        return torch.arange(max(self.sampled_lengths)) < torch.tensor(self.sampled_lengths)[:, None]

    def row_sums(self, values_N: Tensor) -> Tensor:
        """Sum over each row's tokens, (R,)."""
        row_N = torch.arange(len(self.rows)).repeat_interleave(torch.tensor(self.sampled_lengths))
        return values_N.new_zeros(len(self.rows)).index_add(0, row_N, values_N)

    def micro(self, row_indices: Sequence[int], weight_N: Tensor, device: str) -> Micro:
        """These rows as a micro-batch."""
        index = self.index(row_indices)
        masks = None if self.masks is None else [self.masks[i] for i in row_indices]
        batch = TokenBatch.from_rows([self.rows[i] for i in row_indices], device, masks)
        tokens = {name: to_device(values[index], device) for name, values in self.tokens.items()}
        return Micro(batch, tokens, to_device(weight_N[index], device))

    def state_dict(self) -> dict[str, Any]:
        rows = [[prompt, reply] for prompt, reply in self.rows]
        return {"rows": rows, "tokens": self.tokens, "masks": self.masks}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Experience:
        return cls([(prompt, reply) for prompt, reply in state["rows"]], state["tokens"], state["masks"])


def early_scores(episodes: Sequence[Episode], early: Sequence[Sequence[float]]) -> Tensor:
    """What turns before the last one earned, on the last token of each, (N,) over the sampled tokens of all episodes.

    Args:
        early: of each episode the scores of all its turns but the last; empty where only the whole is scored.
    """
    scores = []
    for episode, earned in zip(episodes, early, strict=True):
        turns = episode.turns
        per_turn = [*earned, 0.0] if earned else [0.0] * len(turns)
        for turn, score in zip(turns, per_turn, strict=True):
            scores += [0.0] * (len(turn.token_ids) - 1) + [score]
    return torch.tensor(scores)
