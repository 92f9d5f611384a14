"""English sentences said by espeak-ng, well and badly: gold is about prosody alone.

How it is said is known exactly: espeak-ng said it, and what was changed was changed on purpose. Whether the words can
be understood is not: no recogniser of English is here, and the phone error of every clip is unknown (NaN). Gold
compares with the same utterance said as it was asked for, as in the speech world; a reply of other words with the
right rate, level and pitch has a high gold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.packs.speech.sound.codec import SIZES, Codec
from rlhf_lab.packs.speech.sound.espeak import Espeak
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.packs.speech.world.english_delivery import EnglishDelivery, Reader, draw_english_delivery
from rlhf_lab.packs.speech.world.english_prompts import EnglishUtterance, draw_english_utterance, read_english_prompt

VERSION = 1
"""Increased whenever the same settings give other streams or other grades; part of a corpus fingerprint."""

FITTED_CLIPS = 200
"""Clips of the training split on which the codec is fitted, the same for every seed."""
REST_HZ = 100.0
"""Pitches are compared with those of the same voice, so that any reference serves."""
POINTS = {
    "movement": 2.5,
    "ending": 1.0,
    "register": 0.5,
    "rate": 2.0,
    "noise": 1.0,
    "level": 1.5,
    "dynamics": 0.5,
    "pause": 1.0,
}
"""Aspect of gold → its points; their widths are those of the speech world. They add up to 10, so a clip that is exactly
as asked for has 5."""


def prosody_gold(shares: Mapping[str, float]) -> float:
    """The true reward from the shares of the aspects, −5…5."""
    return gold.LEAST + sum(points * shares[name] for name, points in POINTS.items())


class EnglishWorld(ClipWorld[EnglishUtterance, EnglishDelivery]):
    """English sentences, spoken by espeak-ng in codes.

    Args:
        good, new_voice, temperature, seed: see `ClipWorld`.
        sizes: codes of each codebook.
        espeak: says the texts.
    """

    unheard_phone_error = float("nan")

    def __init__(
        self,
        *,
        good: float,
        new_voice: float,
        temperature: float,
        seed: int,
        espeak: Espeak,
        sizes: Sequence[int] = SIZES,
    ):
        super().__init__(good=good, new_voice=new_voice, temperature=temperature, seed=seed)
        self._reader = Reader(espeak)
        self.codec = fit_codec(self._reader, sizes)

    def read_prompt(self, prompt: str) -> EnglishUtterance:
        return read_english_prompt(prompt)

    def facts(self, utterance: EnglishUtterance) -> dict[str, str]:
        return utterance.facts()

    def _draw(
        self, rng: np.random.Generator, split: str
    ) -> tuple[EnglishUtterance, tuple[EnglishDelivery, EnglishDelivery]]:
        utterance = draw_english_utterance(rng, split, self.new_voice)
        style = utterance.manner
        return utterance, (draw_english_delivery(rng, style, self.good), draw_english_delivery(rng, style, self.good))

    def _perform(self, utterance: EnglishUtterance, delivery: EnglishDelivery | None) -> Frames:
        return self._reader.read(utterance, delivery or EnglishDelivery())

    def _rest_hz(self, utterance: EnglishUtterance) -> float:
        return REST_HZ

    def _judge(
        self, utterances: Sequence[EnglishUtterance], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        return [(prosody_gold(own_shares), self.unheard_phone_error) for own_shares in shares]


def fit_codec(reader: Reader, sizes: Sequence[int]) -> Codec:
    """The codec of all English worlds with codebooks of these sizes, fitted on what espeak-ng says."""
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_english_utterance(rng, "train")
        clips.append(reader.read(utterance, draw_english_delivery(rng, utterance.manner, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
