"""Hand-weighted sum of acoustic features, standardised on clips of the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.types import RewardBatch, TextReward
from rlhf_lab.packs.speech.rewards.acoustic_rm import Standardiser
from rlhf_lab.packs.speech.rewards.clips import features_of, is_silent, renderer_of
from rlhf_lab.packs.speech.rewards.settings import HandWeighted
from rlhf_lab.training.run import Run


def build(settings: HandWeighted, run: Run) -> TextReward:
    """Build the reward term. Its parts are the standardised values of the weighted features."""
    renderer = renderer_of(run, "reward=acoustic")
    # the first clips of the training pairs, chosen and rejected in turn
    pairs = run.data.train[: (settings.clips + 1) // 2]
    responses = [response for pair in pairs for response in (pair.chosen, pair.rejected)][: settings.clips]
    # features with weight 0 are neither standardised nor reported
    weights = {name: weight for name, weight in settings.weights.items() if weight}
    weights_F = np.array(list(weights.values()))
    standardiser = Standardiser.fit(features_of(renderer, responses, "measuring training clips"), list(weights))

    def reward(prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        features_N7 = features_of(renderer, responses)
        values_NF = standardiser(features_N7)
        # elementwise instead of a matrix product, whose rounding may depend on the other responses of the batch
        total_N = np.where(is_silent(features_N7), settings.silent, (values_NF * weights_F).sum(axis=1))
        return RewardBatch(total_N, dict(zip(weights, values_NF.T, strict=True)))

    return reward
