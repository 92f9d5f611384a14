"""Speech world as an `Oracle`: utterances, clips of their deliveries, gold, and a simulated listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from rlhf_lab.packs.speech.sound.codec import SIZES, Codec
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.packs.speech.world.delivery import Delivery, draw_delivery, perform
from rlhf_lab.packs.speech.world.prompts import CATEGORIES, STYLES, Utterance, draw_utterance, read_prompt
from rlhf_lab.packs.speech.world.recogniser import phone_error, recognise

VERSION = 1
"""Version of the world; part of the fingerprint of a corpus. Increase it if the same settings give different streams or
grades."""

FITTED_CLIPS = 400
"""Number of training clips on which the codec is fitted. The clips are the same for all seeds, so that all worlds with
the same codebook sizes share a codec."""


class SpeechWorld(ClipWorld[Utterance, Delivery]):
    """Synthetic world of speech: short utterances as tokens of an audio codec.

    Args:
        good, new_voice, temperature, seed: see `ClipWorld`.
        sizes: number of codes of each codebook.
    """

    categories = tuple(CATEGORIES)
    styles = tuple(STYLES)
    unheard_phone_error = 1.0

    def __init__(self, *, good: float, new_voice: float, temperature: float, seed: int, sizes: Sequence[int] = SIZES):
        super().__init__(good=good, new_voice=new_voice, temperature=temperature, seed=seed)
        self.codec = fitted_codec(tuple(sizes))

    def read_prompt(self, prompt: str) -> Utterance:
        return read_prompt(prompt)

    def metadata(self, utterance: Utterance) -> dict[str, str]:
        return utterance.metadata()

    def _draw(self, rng: np.random.Generator, split: str) -> tuple[Utterance, tuple[Delivery, Delivery]]:
        utterance = draw_utterance(rng, split, self.new_voice)
        return utterance, (draw_delivery(rng, self.good), draw_delivery(rng, self.good))

    def _perform(self, utterance: Utterance, delivery: Delivery | None) -> Frames:
        return perform(utterance, delivery or Delivery())

    def _rest_hz(self, utterance: Utterance) -> float:
        return utterance.speaker.pitch

    def _judge(
        self, utterances: Sequence[Utterance], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        phones = recognise(clips, [utterance.speaker for utterance in utterances])
        judged = []
        for utterance, recognised, own_totals in zip(utterances, phones, shares, strict=True):
            error = phone_error(utterance.phones, recognised)
            judged.append((gold.gold(own_totals, error), error))
        return judged


@lru_cache(maxsize=8)
def fitted_codec(sizes: tuple[int, ...]) -> Codec:
    """Fit the codec that all worlds with these codebook sizes share, on clips of the training split."""
    # a fixed seed: all worlds with these sizes must share the codec
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_utterance(rng, "train")
        clips.append(perform(utterance, draw_delivery(rng, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
