"""The trained acoustic reward model as a reward."""

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
    """See `AcousticModel`."""

    def __init__(self, settings: AcousticModel, renderer: Renderer, model: FeatureModel):
        self.settings, self.renderer, self.model = settings, renderer, model

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        del prompts  # what a clip sounds like is judged, whatever was asked for
        return RewardBatch(self.model(features_of(self.renderer, responses), self.settings.silent))


def build(settings: AcousticModel, run: Run) -> AcousticModelReward:
    renderer = renderer_of(run, "reward=acoustic_rm")
    return AcousticModelReward(settings, renderer, FeatureModel.load(run.needs["acoustic_rm"], "acoustic_rm"))


def from_folder(folder: Path, run: Run) -> AcousticModelReward:
    """The reward that `algorithm=acoustic_reward` wrote to a folder, for `reward=design`."""
    return AcousticModelReward(AcousticModel(), renderer_of(run, "reward=design"), FeatureModel.load(folder, "design"))
