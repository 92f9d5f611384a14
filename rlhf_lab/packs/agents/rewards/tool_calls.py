"""Reward of the tool calls of an episode, turn by turn, independent of its outcome."""

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
"""(tool, values of its arguments): a call in a form that can be compared."""


class ToolCallsReward:
    """Reward term for tool calls, see `ToolCalls`. The reward is NaN for text that no policy sampled."""

    def __init__(self, settings: ToolCalls):
        self.settings = settings

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        turns = [self._turns(episode) if episode.turns else [] for episode in episodes]
        totals = [sum(rewards) if rewards else np.nan for rewards in turns]
        total_N = np.array(totals, dtype=np.float64)
        return RewardBatch(total_N, turns=turns)

    def _turns(self, episode: Episode) -> list[float]:
        settings = self.settings
        expected = [
            _written(call["name"], call["arguments"].values()) for call in episode.task.metadata.get("calls", ())
        ]
        matched = 0  # number of expected calls that were made, in order
        rewards = []
        for text in turn_texts(episode):
            move = read_move(text, {})
            # An answer is no call, so it neither costs nor earns anything here.
            if move.answer is not None:
                rewards.append(0.0)
                continue
            reward = settings.bonus - settings.cost
            call = _written(move.name, (move.arguments or {}).values())
            if matched < len(expected) and call == expected[matched]:
                matched += 1
                reward += settings.progress / len(expected)
            rewards.append(reward)
        return rewards


def turn_texts(episode: Episode) -> list[str]:
    """Return the policy's output in each turn of an episode."""
    before = len(to_messages(episode.task.prompt))
    earlier = [message for message in to_messages(episode.prompt)[before:] if message["role"] == "assistant"]
    return [*(message["content"] for message in earlier), episode.response]


# Spaces and case are ignored, because small models write spaces inside the brackets.
def _written(name: str, values: Any) -> Written:
    texts = [" ".join(str(value).split()) for value in values]
    return name, tuple(text.casefold() for text in texts)


def build(settings: ToolCalls, run: Run) -> ToolCallsReward:
    if run.corpus.environment is None:
        raise ConfigError(f"reward=tool_calls: data={run.corpus.name} has no environment with tools; use data=tools")
    return ToolCallsReward(settings)
