"""A hand-weighted sum of acoustic features, standardised on clips of the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import Corpus, FloatArray, RewardBatch
from rlhf_lab.packs.speech.rewards.clips import features_of, is_silent, renderer_of
from rlhf_lab.packs.speech.rewards.feature_model import Standardiser
from rlhf_lab.packs.speech.rewards.settings import HandWeighted
from rlhf_lab.training.run import Run


class HandWeightedReward:
    """See `HandWeighted`. Parts: the standardised value of each feature that has a weight."""

    def __init__(self, settings: HandWeighted, renderer: Renderer, training_clips_N7: FloatArray):
        weights = {name: weight for name, weight in settings.weights.items() if weight}
        self.settings = settings
        self.renderer = renderer
        self.weights_F = np.array(list(weights.values()))
        self.standardiser = Standardiser.fit(training_clips_N7, list(weights))

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        del prompts  # what a clip sounds like is judged, whatever was asked for
        features_N7 = features_of(self.renderer, responses)
        silent_N = is_silent(features_N7)
        values_NF = self.standardiser(features_N7)
        # elementwise, so that a score does not depend on the replies beside it to the last bit
        total_N = (values_NF * self.weights_F).sum(axis=1)
        parts = {name: values_NF[:, i] for i, name in enumerate(self.standardiser.names)}
        return RewardBatch(np.where(silent_N, self.settings.silent, total_N), parts)


def training_replies(corpus: Corpus, clips: int) -> list[str]:
    """Replies of both sides of the first training pairs."""
    pairs = corpus.train[: (clips + 1) // 2]
    return [reply for pair in pairs for reply in (pair.chosen, pair.rejected)][:clips]


def build(settings: HandWeighted, run: Run) -> HandWeightedReward:
    renderer = renderer_of(run, "reward=acoustic")
    replies = training_replies(run.data, settings.clips)
    return HandWeightedReward(settings, renderer, features_of(renderer, replies, "measuring training clips"))
