"""Reward term of the trained acoustic reward model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.packs.speech.rewards.clips import features_of, renderer_of
from rlhf_lab.packs.speech.rewards.feature_model import FeatureModel
from rlhf_lab.packs.speech.rewards.settings import AcousticModel
from rlhf_lab.training.run import Run


class AcousticModelReward:
    """Reward term of `AcousticModel`."""

    def __init__(self, settings: AcousticModel, renderer: Renderer, model: FeatureModel):
        self.settings, self.renderer, self.model = settings, renderer, model

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        del prompts  # only the sound of a clip is scored, independent of the prompt
        return RewardBatch(self.model(features_of(self.renderer, responses), self.settings.silent))


def build(settings: AcousticModel, run: Run) -> AcousticModelReward:
    renderer = renderer_of(run, "reward=acoustic_rm")
    return AcousticModelReward(settings, renderer, FeatureModel.load(run.needs["acoustic_rm"], "acoustic_rm"))


def from_folder(directory: Path, run: Run) -> AcousticModelReward:
    """Load the reward that `algorithm=acoustic_reward` wrote to a directory, for `reward=design`."""
    renderer = renderer_of(run, "reward=design")
    return AcousticModelReward(AcousticModel(), renderer, FeatureModel.load(directory, "design"))
