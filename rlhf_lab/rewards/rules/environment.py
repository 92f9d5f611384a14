"""Turn rewards of an environment as a reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.rules.settings import EnvironmentTurns
from rlhf_lab.training.run import Run


class EnvironmentReward:
    """Sum of the rewards of an episode's turns, with the reward of each turn. NaN for text that no policy sampled."""

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        turns = [[turn.reward for turn in episode.turns] for episode in episodes]
        total_N = np.array([sum(rewards) if rewards else np.nan for rewards in turns], dtype=np.float64)
        return RewardBatch(total_N, turns=turns)


def build(settings: EnvironmentTurns, run: Run) -> EnvironmentReward:
    """Return the reward. Raise ConfigError if the data have no environment."""
    del settings
    if run.corpus.environment is None:
        raise ConfigError(
            f"reward=environment: data={run.corpus.name} has no environment that gives rewards; choose another reward"
        )
    return EnvironmentReward()
