"""English sentences that espeak-ng says, as a corpus (`data=espeak`). Downloads nothing, but needs the program.

Replies are streams of a codec that is fitted on what espeak-ng says. `chosen` is the one that the simulated listener
preferred for its prosody; see `packs/speech/world/english_world.py`.
"""

from __future__ import annotations

from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.sound.espeak import Espeak as Program
from rlhf_lab.packs.speech.world.english_world import VERSION, EnglishWorld
from rlhf_lab.packs.speech.world.settings import Espeak
from rlhf_lab.packs.speech.world.speech import draw_corpus


def build(settings: Espeak) -> Corpus:
    """Draw the corpus. Raises ConfigError where espeak-ng is not installed."""
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
