"""Reward equal to the true reward, which is known for synthetic data (worlds) and environments."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.rewards.rules.settings import Gold
from rlhf_lab.training.run import Run


class GoldReward:
    def __init__(self, corpus: Corpus):
        self.corpus = corpus

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        gold = self.corpus.measure(episodes)["gold"]
        return RewardBatch(gold, {"gold": gold})


def build(settings: Gold, run: Run) -> GoldReward:
    """Return the reward. Raise ConfigError if the data have no true reward."""
    del settings
    if run.corpus.oracle is None and run.corpus.environment is None:
        raise ConfigError(f"reward=gold: data={run.corpus.name} has no known true reward; use reward=bt")
    return GoldReward(run.corpus)
