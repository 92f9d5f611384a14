"""Corpus of English sentences spoken by espeak-ng (`data=espeak`). It needs the program, but no download.

Responses are streams of a codec fitted on speech of espeak-ng. The simulated listener preferred the response `chosen`
for its prosody; see `packs/speech/world/english_world.py`.
"""

from __future__ import annotations

from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.sound.espeak import Espeak as Program
from rlhf_lab.packs.speech.world.english_world import VERSION, EnglishWorld
from rlhf_lab.packs.speech.world.settings import EspeakData
from rlhf_lab.packs.speech.world.speech import draw_corpus


def build(settings: EspeakData) -> Corpus:
    """Generate the corpus. Raises ConfigError if espeak-ng is not installed."""
    train_seed, _ = settings.split_seeds()
    program = Program()
    world = EnglishWorld(
        good=settings.good,
        new_voice=settings.test_voice,
        temperature=settings.temperature,
        sizes=settings.codebooks,
        seed=train_seed,
        espeak=program,
    )
    return draw_corpus("espeak", world, settings, f"English world {VERSION} espeak-ng {program.version}")
