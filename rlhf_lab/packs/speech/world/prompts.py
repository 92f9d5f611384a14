"""Prompts of the speech world: a voice, a style, a category of sentence, and the syllables of a few invented words.

    low dark lively question : ta ko ma ne

A prompt is a transcript of one human turn with this text. Words have two syllables, and the first is stressed. Words
are separated by a space, like syllables. `read_prompt` parses any text of this form, even if no corpus contains it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.splits import split_of, transcript
from rlhf_lab.packs.speech.world.phones import HELD_OUT_VOICE, PHONES, TRAINING_VOICES, VOICES, VOWELS, Voice

WORDS = (
    ("ma", "ne"), ("lo", "ri"), ("wa", "ju"), ("vi", "ze"), ("fo", "sa"), ("xi", "pu"), ("ta", "ko"), ("ke", "mi"),
    ("no", "lu"), ("ra", "si"), ("je", "wo"), ("za", "fu"), ("pe", "xa"), ("si", "lo"), ("tu", "nu"), ("ko", "va"),
    ("mi", "fe"), ("la", "pe"), ("re", "ti"), ("su", "xo"),
)  # fmt: skip
"""The invented words, as syllables."""
CATEGORIES = {
    "statement": "falls at the end",
    "question": "rises at the end",
    "exclamation": "begins high and loud, and falls far",
    "list": "rises on every word but the last, with a pause after it",
    "request": "rises a little at the end",
    "aside": "lower, quieter and flatter than the rest of the talk",
}
"""Melody of each category of sentence."""
STYLES = {
    "neutral": "reads the news",
    "lively": "wide pitch movement, a little fast and loud",
    "calm": "narrow pitch movement, slow and quiet",
    "brisk": "fast, with short pauses",
    "firm": "loud and clear, pitch hardly moves up",
    "breathy": "quiet, with much breath in the voice",
}
"""Description of each style in words, for human readers."""
FEWEST_WORDS, MOST_WORDS = 2, 3
SYLLABLES = tuple(dict.fromkeys(chain.from_iterable(WORDS)))
NEW_VOICE = "new_voice"
"""Category of tasks (`Corpus.metadata`) with the held-out voice, regardless of the sentence."""
PROMPT = re.compile(r"\n\nHuman: (\w+ \w+) (\w+) (\w+) : ((?:[a-z]{2} ?)+)\n\nAssistant:")


@dataclass(frozen=True)
class Utterance:
    """An utterance that a prompt requests.

    Attributes:
        voice, style, category: keys of `VOICES`, `STYLES` and `CATEGORIES`.
        words: syllables of each word.
    """

    voice: str
    style: str
    category: str
    words: tuple[tuple[str, ...], ...]

    @property
    def syllables(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.words))

    @property
    def text(self) -> str:
        """All syllables, separated by spaces. This text determines the split."""
        return " ".join(self.syllables)

    @property
    def phones(self) -> str:
        """One letter per phone, without pauses."""
        return "".join(self.syllables)

    @cached_property
    def prompt(self) -> str:
        return transcript(f"{self.voice} {self.style} {self.category} : {self.text}")

    @property
    def speaker(self) -> Voice:
        return VOICES[self.voice]

    @property
    def rest_hz(self) -> float:
        return self.speaker.pitch

    @property
    def split(self) -> str:
        """Split of the utterance: "test" if its syllables or its voice are held out."""
        return "test" if self.voice == HELD_OUT_VOICE else split_of(self.text)

    def in_style(self, style: str) -> Utterance:
        """Return the same utterance in another style."""
        return replace(self, style=style)

    def metadata(self) -> dict[str, str]:
        """Return the row of `Corpus.metadata`.

        `category` is `NEW_VOICE` for the held-out voice; `sentence` is always the category of the sentence.
        """
        return {
            "text": self.text,
            "category": NEW_VOICE if self.voice == HELD_OUT_VOICE else self.category,
            "sentence": self.category,
            "style": self.style,
            "description": f"{self.voice} voice, {self.style}: {STYLES[self.style]}",
            "voice": self.voice,
        }


@lru_cache(maxsize=65_536)
def read_prompt(prompt: str) -> Utterance:
    """Parse the utterance that a prompt requests. Two syllables form a word. Raises DataError for other text."""
    match = PROMPT.fullmatch(prompt)
    if match is None:
        raise DataError(
            f"{prompt!r} is not a prompt of the speech world; expected a transcript of "
            '"VOICE STYLE CATEGORY : SYLLABLES", such as "low dark lively question : ta ko ma ne"'
        )
    voice, style, category, text = match.groups()
    for name, value, known in (("voice", voice, VOICES), ("style", style, STYLES), ("category", category, CATEGORIES)):
        if value not in known:
            raise DataError(f"{prompt!r}: unknown {name} {value!r}; use one of {', '.join(known)}")
    syllables = text.split()
    for syllable in syllables:
        if syllable[0] not in PHONES or syllable[0] in VOWELS or syllable[1] not in VOWELS:
            raise DataError(f"{prompt!r}: {syllable!r} is not a syllable; write a consonant and a vowel, such as 'ta'")
    # an odd number of syllables gives a last word with one syllable
    words = tuple(tuple(syllables[i : i + 2]) for i in range(0, len(syllables), 2))
    return Utterance(voice, style, category, words)


def draw_utterance(rng: np.random.Generator, split: str, new_voice: float = 0.0) -> Utterance:
    """Sample an utterance of a split, uniform over styles, categories, word counts and sequences of distinct words.

    Args:
        new_voice: probability of the held-out voice in the test split.
    """
    heldout_voice = split == "test" and rng.random() < new_voice
    voice = HELD_OUT_VOICE if heldout_voice else str(rng.choice(TRAINING_VOICES))
    style, category = str(rng.choice(list(STYLES))), str(rng.choice(list(CATEGORIES)))
    while True:
        count = int(rng.integers(FEWEST_WORDS, MOST_WORDS + 1))
        words = tuple(WORDS[i] for i in rng.permutation(len(WORDS))[:count].tolist())
        # the syllables are always of the requested split, even for the held-out voice
        if split_of(" ".join(chain.from_iterable(words))) == split:
            return Utterance(voice, style, category, words)
