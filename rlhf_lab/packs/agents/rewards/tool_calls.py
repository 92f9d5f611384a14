"""What the calls of an episode cost and earn, turn by turn, whatever its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.rewards.settings import ToolCalls
from rlhf_lab.training.run import Run

Written = tuple[str, tuple[str, ...]]
"""A call by its tool and the values of its arguments."""


class ToolCallsReward:
    """See `ToolCalls`. NaN for text that no policy sampled."""

    def __init__(self, settings: ToolCalls):
        self.settings = settings

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        turns = [self._turns(episode) if episode.turns else [] for episode in episodes]
        total_N = np.array([sum(rewards) if rewards else np.nan for rewards in turns], dtype=np.float64)
        return RewardBatch(total_N, turns=turns)

    def _turns(self, episode: Episode) -> list[float]:
        """What each turn earns."""
        settings = self.settings
        expected = [_written(call["name"], call["arguments"].values()) for call in episode.task.facts.get("calls", ())]
        made = 0  # expected calls that were made, in order
        rewards = []
        for text in turn_texts(episode):
            move = read_move(text, {})
            if move.answer is not None:
                rewards.append(0.0)
                continue
            reward = settings.bonus - settings.cost
            call = _written(move.name, (move.arguments or {}).values())
            if made < len(expected) and call == expected[made]:
                made += 1
                reward += settings.progress / len(expected)
            rewards.append(reward)
        return rewards


def turn_texts(episode: Episode) -> list[str]:
    """What the policy said in each turn of an episode."""
    before = len(to_messages(episode.task.prompt))
    earlier = [message for message in to_messages(episode.prompt)[before:] if message["role"] == "assistant"]
    return [*(message["content"] for message in earlier), episode.response]


def _written(name: str, values: Any) -> Written:
    return name, tuple(" ".join(str(value).split()).casefold() for value in values)


def build(settings: ToolCalls, run: Run) -> ToolCallsReward:
    if run.corpus.environment is None:
        raise ConfigError(f"reward=tool_calls: data={run.corpus.name} has no environment with tools; use data=tools")
    return ToolCallsReward(settings)
