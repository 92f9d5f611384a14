"""Reward term of a scalar head on a Wav2Vec2 trunk."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.settings import SpeechEncoder
from rlhf_lab.packs.speech.rewards.speech_encoder import SpeechModel
from rlhf_lab.training.run import Run


class SpeechEncoderReward:
    """Reward term of `SpeechEncoder`. Identical responses are scored once."""

    def __init__(self, settings: SpeechEncoder, renderer: Renderer, model: SpeechModel):
        self.settings, self.renderer, self.model = settings, renderer, model

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        del prompts  # only the sound of a clip is scored, independent of the prompt
        # a forward pass is expensive, and groups often contain identical responses
        distinct = list(dict.fromkeys(responses))
        scores = self.model(self.renderer.render(distinct), self.settings.silent)
        position = {response: i for i, response in enumerate(distinct)}
        return RewardBatch(scores[[position[response] for response in responses]])


def build(settings: SpeechEncoder, run: Run) -> SpeechEncoderReward:
    renderer = renderer_of(run, "reward=wav2vec2")
    model = SpeechModel.load(run.needs["wav2vec2"], "wav2vec2", run.device, settings.batch_seconds)
    return SpeechEncoderReward(settings, renderer, model)
