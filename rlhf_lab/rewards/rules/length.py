"""Response length as a reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.rules.settings import Length
from rlhf_lab.training.run import Run


class LengthReward:
    def __init__(self, per_words: float):
        self.per_words = per_words

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        return RewardBatch(np.array([len(text.split()) / self.per_words for text in responses]))


def build(settings: Length, run: Run) -> LengthReward:
    del run
    return LengthReward(settings.per_words)
