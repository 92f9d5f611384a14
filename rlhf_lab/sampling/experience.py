"""Training data of an on-policy iteration: sampled episodes, their scores, and concatenated per-token quantities."""

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
class EpisodeGroup:
    """G episodes of one task.

    Attributes:
        rewards, scores: reward of each episode, and its score after shaping, which training uses; NaN if unscored.
        early: for each episode, the part of its score earned by each turn except the last; empty if only complete
            episodes are scored.
        greedy: shaped score of the greedy response, for `remax`; None without one.
        pool: group as it was sampled, if a filter removed episodes from it; None otherwise.
    """

    task: Task
    episodes: list[Episode]
    rewards: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    early: list[list[float]] = field(default_factory=list)
    greedy: float | None = None
    greedy_tokens: int = 0
    pool: EpisodeGroup | None = None

    @property
    def sampled(self) -> EpisodeGroup:
        """All episodes that were sampled, including those that a filter removed."""
        return self.pool or self

    def keep(self, indices: Sequence[int]) -> EpisodeGroup:
        """Return a group with only these episodes; its `pool` is the full group, as it was sampled."""
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
        """True if all scores, from which advantages are computed, are equal: the group then teaches nothing."""
        return _same(self.scores)

    @property
    def undecided(self) -> bool:
        """True if the reward prefers no episode, regardless of penalties."""
        return _same(self.rewards) or self.wasted


def _same(values: Sequence[float]) -> bool:
    """Return True if there are no two different values; NaN counts as a missing value."""
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return True
    tolerance = 1e-6 * (1 + abs(known[0]))  # for rounding, relative for large values
    return max(known) - min(known) <= tolerance


def episodes_of(groups: Iterable[EpisodeGroup]) -> list[Episode]:
    """Return the episodes of all groups, with the episodes of a group next to each other."""
    return [episode for group in groups for episode in group.episodes]


def episode_state(episode: Episode) -> dict[str, Any]:
    """Return an episode as plain values, without its task."""
    return {
        "prompt": episode.prompt,
        "response": episode.response,
        "prompt_ids": episode.prompt_ids,
        "segments": [[part.token_ids, part.sampled, part.logps, part.reward] for part in episode.segments],
        "ended": episode.finished,
    }


def episode_from(task: Task, state: dict[str, Any]) -> Episode:
    """Inverse of `episode_state`."""
    segments = tuple(Segment(*values) for values in state["segments"])
    return Episode(task, state["prompt"], state["response"], state["prompt_ids"], segments, state["ended"])


@dataclass
class Micro:
    """One forward pass: token rows, and quantities of each response token, (N,) in the order of `batch.targets()`."""

    batch: TokenBatch
    tokens: dict[str, Tensor]
    weight_N: Tensor


@dataclass
class Imitation:
    """One forward pass over corpus responses, whose −log π is multiplied by `weight` (PPO-ptx)."""

    batch: TokenBatch
    weight: float


@dataclass
class Experience:
    """Scored episodes as token rows.

    Attributes:
        rows: (prompt, all tokens after it) as token ids.
        tokens: name → values (N,) over the sampled tokens of all rows. Names: `old`, `ref`, `advantage`, `value`,
            `return`; `drawn`, log π of the older policy that sampled them, with `staleness`; `early`, the score that
            turns before the last one earned, on the last token of each turn.
        masks: for each row, True for each token after the prompt that was sampled; None if all tokens were.
    """

    rows: list[Row]
    tokens: dict[str, Tensor]
    masks: list[list[bool]] | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(prompt) + len(response) for prompt, response in self.rows]
        if self.masks is None:
            self.sampled_lengths = [len(response) for _, response in self.rows]
        else:
            self.sampled_lengths = [sum(mask) for mask in self.masks]
        self.start = [0, *accumulate(self.sampled_lengths)]

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Experience:
        rows = [(episode.prompt_ids, episode.token_ids) for episode in episodes]
        masks = [episode.sampled for episode in episodes]
        is_all_sampled = all(map(all, masks))
        # without masks, all tokens of a response are known to be sampled
        return cls(rows, {}, None if is_all_sampled else masks)

    def index(self, row_indices: Sequence[int]) -> Tensor:
        """Return the positions of the tokens of these rows, in the order of `row_indices`."""
        positions = [torch.arange(self.start[i], self.start[i + 1]) for i in row_indices]
        return torch.cat(positions)

    def lengths_N(self) -> Tensor:
        """Return, for each token, the number of sampled tokens of its row, (N,)."""
        length_R = torch.tensor(self.sampled_lengths)
        return length_R.repeat_interleave(length_R)

    def last(self) -> Tensor:
        """Return the position of each row's last token, (R,)."""
        return torch.tensor(self.start[1:]) - 1

    def padded(self, values_N: Tensor) -> Tensor:
        """Reshape (N,) → (R, T), with zeros after the end of each row."""
        out = values_N.new_zeros(len(self.rows), max(self.sampled_lengths))
        out[self.mask()] = values_N
        return out

    def mask(self) -> Tensor:
        """Return a mask (R, T), True for each token."""
        column_T = torch.arange(max(self.sampled_lengths))
        return column_T < torch.tensor(self.sampled_lengths)[:, None]

    def row_sums(self, values_N: Tensor) -> Tensor:
        """Return the sum over each row's tokens, (R,)."""
        lengths_R = torch.tensor(self.sampled_lengths)
        row_N = torch.arange(len(self.rows)).repeat_interleave(lengths_R)
        return values_N.new_zeros(len(self.rows)).index_add(0, row_N, values_N)

    def micro(self, row_indices: Sequence[int], weight_N: Tensor, device: str) -> Micro:
        index = self.index(row_indices)  # of the rows' tokens in the flat columns
        masks = None if self.masks is None else [self.masks[i] for i in row_indices]
        rows = [self.rows[i] for i in row_indices]
        batch = TokenBatch.from_rows(rows, device, masks)
        tokens = {name: to_device(values[index], device) for name, values in self.tokens.items()}
        return Micro(batch, tokens, to_device(weight_N[index], device))

    def state_dict(self) -> dict[str, Any]:
        rows = [[prompt, response] for prompt, response in self.rows]
        return {"rows": rows, "tokens": self.tokens, "masks": self.masks}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Experience:
        rows = [(prompt, response) for prompt, response in state["rows"]]  # `state_dict` stores lists
        return cls(rows, state["tokens"], state["masks"])


def early_scores(episodes: Sequence[Episode], early: Sequence[Sequence[float]]) -> Tensor:
    """Return the scores of turns before the last one, on the last token of each turn; zero on all other tokens.

    Args:
        early: for each episode, the scores of all its turns except the last; empty if only the episode is scored.

    Returns:
        (N,) over the sampled tokens of all episodes.
    """
    scores = []
    for episode, earned in zip(episodes, early, strict=True):
        turns = episode.turns
        # the score of the last turn is part of the episode's score
        per_turn = [*earned, 0.0] if earned else [0.0] * len(turns)
        for turn, score in zip(turns, per_turn, strict=True):
            scores += [0.0] * (len(turn.token_ids) - 1) + [score]
    return torch.tensor(scores)
