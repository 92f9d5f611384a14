"""Reward that uses the result of any step of a reward design."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.core.packs import load, named
from rlhf_lab.core.types import RewardBatch, TextReward
from rlhf_lab.rewards.criteria.model import MODEL_FILE, CriteriaModel
from rlhf_lab.rewards.criteria.sets import CriteriaSet, criteria_of
from rlhf_lab.rewards.criteria.settings import Design
from rlhf_lab.rewards.saved import load_reward
from rlhf_lab.training.run import Run


class CriteriaReward:
    def __init__(self, criteria: CriteriaSet, model: CriteriaModel):
        self.criteria, self.model = criteria, model

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        values_NC = self.criteria.measure(prompts, responses)
        standardised_NC = self.model.standardised(values_NC)
        weighed = [i for i, weight in enumerate(self.model.weights) if weight]
        parts = {self.model.names[i]: standardised_NC[:, i] for i in weighed}
        return RewardBatch(self.model(values_NC), parts)


def build(settings: Design, run: Run) -> TextReward:
    """Return the reward in `needs.design`: criteria with weights, a reward file of a pack, or a reward model."""
    directory = Path(run.needs["design"])
    if (directory / MODEL_FILE).is_file():
        criteria = criteria_of(run.data)
        return CriteriaReward(criteria, CriteriaModel.load(directory, criteria.names))
    # Packs register the files of rewards that they can load; anything else is a reward model.
    for file, reference in named("reward_files").items():
        if (directory / file).is_file():
            reward: TextReward = load(reference)(directory, run)
            return reward
    return load_reward(directory, device=run.device).score
