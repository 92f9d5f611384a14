"""English sentences spoken by espeak-ng (`data=espeak`), with and without defects. Gold only covers prosody.

The delivery is known exactly, because espeak-ng spoke it and all changes were deliberate. The intelligibility is
unknown: there is no recogniser of English, so the phone error of all clips is NaN. As in the speech world, gold
compares a clip with the same utterance spoken exactly as requested. Therefore a response with other words, but the
right rate, level and pitch, has a high gold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.sound.codec import Codec
from rlhf_lab.packs.speech.sound.espeak import Espeak
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.packs.speech.world.english import (
    STYLES,
    TEXTS,
    EnglishDelivery,
    EnglishUtterance,
    EspeakReader,
    draw_english_delivery,
    draw_english_utterance,
    read_english_prompt,
)
from rlhf_lab.packs.speech.world.settings import EspeakData
from rlhf_lab.packs.speech.world.speech import draw_corpus

VERSION = 1
"""Version of the world; part of the fingerprint of a corpus. Increase it if the same settings give different streams or
grades."""

FITTED_CLIPS = 200
"""Number of training clips on which the codec is fitted; the clips are the same for all seeds."""
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
    """World of English sentences spoken by espeak-ng, as codec codes."""

    categories = tuple(TEXTS)
    styles = tuple(STYLES)
    unheard_phone_error = float("nan")

    def __init__(self, settings: EspeakData):
        super().__init__(settings)
        self.espeak = Espeak()
        self._reader = EspeakReader(self.espeak)
        # a fixed seed: all English worlds with these sizes must share the codec
        rng = np.random.default_rng(0)
        clips = []
        for _ in range(FITTED_CLIPS):
            utterance = draw_english_utterance(rng, "train")
            clips.append(self._reader.read(utterance, draw_english_delivery(rng, utterance.manner, 0.5)))
        self.codec = Codec.fit(clips, settings.codebooks, seed=0)

    def read_prompt(self, prompt: str) -> EnglishUtterance:
        return read_english_prompt(prompt)

    def _draw(
        self, rng: np.random.Generator, split: str
    ) -> tuple[EnglishUtterance, tuple[EnglishDelivery, EnglishDelivery]]:
        utterance = draw_english_utterance(rng, split, self.settings.test_voice)
        first, second = (draw_english_delivery(rng, utterance.manner, self.settings.good) for _ in range(2))
        return utterance, (first, second)

    def _perform(self, utterance: EnglishUtterance, delivery: EnglishDelivery | None) -> Frames:
        return self._reader.read(utterance, delivery or EnglishDelivery())

    def _judge(
        self, utterances: Sequence[EnglishUtterance], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        return [(prosody_gold(own_totals), self.unheard_phone_error) for own_totals in shares]


def build(settings: EspeakData) -> Corpus:
    """Generate the corpus. Raises ConfigError if espeak-ng is not installed."""
    world = EnglishWorld(settings)
    return draw_corpus("espeak", world, settings, f"English world {VERSION} espeak-ng {world.espeak.version}")
