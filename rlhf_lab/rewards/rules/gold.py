"""The world's true reward as a reward."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Oracle, RewardBatch
from rlhf_lab.rewards.rules.settings import Gold
from rlhf_lab.training.run import Run


class GoldReward:
    """Grades replies with the oracle of the data."""

    def __init__(self, oracle: Oracle):
        self.oracle = oracle

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        gold = self.oracle.measure(prompts, responses)["gold"]
        return RewardBatch(gold, {"gold": gold})


def build(settings: Gold, run: Run) -> GoldReward:
    del settings
    if run.corpus.oracle is None:
        raise ConfigError(f"reward=gold: data={run.corpus.name} has no known true reward; use reward=bt")
    return GoldReward(run.corpus.oracle)
