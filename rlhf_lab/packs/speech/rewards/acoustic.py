"""Hand-weighted sum of acoustic features, standardised on clips of the training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import Corpus, FloatArray, RewardBatch
from rlhf_lab.packs.speech.rewards.acoustic_rm import Standardiser
from rlhf_lab.packs.speech.rewards.clips import features_of, is_silent, renderer_of
from rlhf_lab.packs.speech.rewards.settings import HandWeighted
from rlhf_lab.training.run import Run


class HandWeightedReward:
    """Reward term of `HandWeighted`. Its parts are the standardised values of the weighted features."""

    def __init__(self, settings: HandWeighted, renderer: Renderer, training_clips_N7: FloatArray):
        # features with weight 0 are neither standardised nor reported
        weights = {name: weight for name, weight in settings.weights.items() if weight}
        self.settings = settings
        self.renderer = renderer
        self.weights_F = np.array(list(weights.values()))
        self.standardiser = Standardiser.fit(training_clips_N7, list(weights))

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        del prompts  # only the sound of a clip is scored, independent of the prompt
        features_N7 = features_of(self.renderer, responses)
        silent_N = is_silent(features_N7)
        values_NF = self.standardiser(features_N7)
        # elementwise instead of a matrix product, whose rounding may depend on the other responses of the batch
        total_N = (values_NF * self.weights_F).sum(axis=1)
        parts = {name: values_NF[:, i] for i, name in enumerate(self.standardiser.names)}
        return RewardBatch(np.where(silent_N, self.settings.silent, total_N), parts)


def training_responses(corpus: Corpus, clips: int) -> list[str]:
    """Return the first `clips` responses of the training pairs, chosen and rejected in turn."""
    pairs = corpus.train[: (clips + 1) // 2]
    return [response for pair in pairs for response in (pair.chosen, pair.rejected)][:clips]


def build(settings: HandWeighted, run: Run) -> HandWeightedReward:
    renderer = renderer_of(run, "reward=acoustic")
    responses = training_responses(run.data, settings.clips)
    return HandWeightedReward(settings, renderer, features_of(renderer, responses, "measuring training clips"))
