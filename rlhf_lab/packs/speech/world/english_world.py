"""English sentences spoken by espeak-ng, with and without defects. Gold only covers prosody.

The delivery is known exactly, because espeak-ng spoke it and all changes were deliberate. The intelligibility is
unknown: there is no recogniser of English, so the phone error of all clips is NaN. As in the speech world, gold
compares a clip with the same utterance spoken exactly as requested. Therefore a response with other words, but the
right rate, level and pitch, has a high gold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.packs.speech.sound.codec import SIZES, Codec
from rlhf_lab.packs.speech.sound.espeak import Espeak
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.packs.speech.world.english_delivery import EnglishDelivery, EspeakReader, draw_english_delivery
from rlhf_lab.packs.speech.world.english_prompts import (
    STYLES,
    TEXTS,
    EnglishUtterance,
    draw_english_utterance,
    read_english_prompt,
)

VERSION = 1
"""Version of the world; part of the fingerprint of a corpus. Increase it if the same settings give different streams or
grades."""

FITTED_CLIPS = 200
"""Number of training clips on which the codec is fitted; the clips are the same for all seeds."""
REST_HZ = 100.0
"""Reference pitch in Hz. Gold only compares clips of the same voice, so the value does not matter."""
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
"""Points of each aspect of gold; the widths are those of the speech world. The sum is 10, so a clip exactly as
requested has a gold of 5."""


def prosody_gold(shares: Mapping[str, float]) -> float:
    """Return the true reward, −5…5. `shares` has the fraction of its points that each aspect reaches, 0…1."""
    return gold.LEAST + sum(points * shares[name] for name, points in POINTS.items())


class EnglishWorld(ClipWorld[EnglishUtterance, EnglishDelivery]):
    """World of English sentences spoken by espeak-ng, as codec codes.

    Args:
        good, new_voice, temperature, seed: see `ClipWorld`.
        sizes: number of codes of each codebook.
        espeak: synthesiser of the texts.
    """

    categories = tuple(TEXTS)
    styles = tuple(STYLES)
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
        self._reader = EspeakReader(espeak)
        self.codec = fit_codec(self._reader, sizes)

    def read_prompt(self, prompt: str) -> EnglishUtterance:
        return read_english_prompt(prompt)

    def metadata(self, utterance: EnglishUtterance) -> dict[str, str]:
        return utterance.metadata()

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
        return [(prosody_gold(own_totals), self.unheard_phone_error) for own_totals in shares]


def fit_codec(reader: EspeakReader, sizes: Sequence[int]) -> Codec:
    """Fit the codec that all English worlds with these codebook sizes share, on speech of espeak-ng."""
    # a fixed seed: all worlds with these sizes must share the codec
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_english_utterance(rng, "train")
        clips.append(reader.read(utterance, draw_english_delivery(rng, utterance.manner, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
