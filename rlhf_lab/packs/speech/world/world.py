"""The speech world behind the `Oracle` protocol: what is asked for, clips of people who say it, gold, and a
listener."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from rlhf_lab.packs.speech.sound.codec import SIZES, Codec
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.packs.speech.world.delivery import Delivery, draw_delivery, perform
from rlhf_lab.packs.speech.world.prompts import Utterance, draw_utterance, read_prompt
from rlhf_lab.packs.speech.world.recogniser import phone_error, recognise

VERSION = 1
"""Increased whenever the same settings give other streams or other grades; part of a corpus fingerprint."""

FITTED_CLIPS = 400
"""Clips of the training split on which the codec is fitted. They are the same for every seed of a world, so that all
worlds with codebooks of the same sizes share a codec."""


class SpeechWorld(ClipWorld[Utterance, Delivery]):
    """A world of short made-up utterances, spoken in codes.

    Args:
        good, new_voice, temperature, seed: see `ClipWorld`.
        sizes: codes of each codebook.
    """

    unheard_phone_error = 1.0

    def __init__(self, *, good: float, new_voice: float, temperature: float, seed: int, sizes: Sequence[int] = SIZES):
        super().__init__(good=good, new_voice=new_voice, temperature=temperature, seed=seed)
        self.codec = fitted_codec(tuple(sizes))

    def read_prompt(self, prompt: str) -> Utterance:
        return read_prompt(prompt)

    def facts(self, utterance: Utterance) -> dict[str, str]:
        return utterance.facts()

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
        for utterance, recognised, own_shares in zip(utterances, phones, shares, strict=True):
            error = phone_error(utterance.phones, recognised)
            judged.append((gold.gold(own_shares, error), error))
        return judged


@lru_cache(maxsize=8)
def fitted_codec(sizes: tuple[int, ...]) -> Codec:
    """The codec of all worlds with codebooks of these sizes, fitted on clips of the training split."""
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_utterance(rng, "train")
        clips.append(perform(utterance, draw_delivery(rng, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
