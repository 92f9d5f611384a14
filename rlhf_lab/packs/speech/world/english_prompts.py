"""Prompts of the espeak-ng world: a voice, a style, a category of sentence, and one of 30 English texts.

    british woman lively question : where is the red door

A prompt is a transcript of one human turn with this content: the words of the text without capitals and punctuation.
The last text of each category is held out. Its words also occur in other texts, so a model has seen all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.splits import transcript
from rlhf_lab.packs.speech.world.prompts import NEW_VOICE

TEXTS = {
    "statement": (
        "The red door is open.",
        "My brother lives near the river.",
        "The train leaves at nine.",
        "We walked home in the rain.",
        "The river is near my home.",
    ),
    "question": (
        "Where is the red door?",
        "Is the train late again?",
        "Do you live near the river?",
        "When does the rain stop?",
        "Where does the train stop?",
    ),
    "exclamation": (
        "What a lovely morning!",
        "Watch out for the dog!",
        "We won the game!",
        "That was a great song!",
        "What a great game!",
    ),
    "list": (
        "Red, green, and blue.",
        "Bread, milk, and apples.",
        "One, two, and three.",
        "Dogs, cats, and horses.",
        "Green apples, bread, and milk.",
    ),
    "request": (
        "Please open the door.",
        "Could you bring the milk?",
        "Please wait for me here.",
        "Tell me the time, please.",
        "Please bring me the bread.",
    ),
    "greeting": (
        "Good morning to you all!",
        "Hello, my old friend!",
        "Welcome home, brother!",
        "See you at nine!",
        "Good morning, my friend!",
    ),
}
"""Texts of each category, as they are spoken. Their punctuation determines the melody."""


def words_of(text: str) -> str:
    """Return a text in the form of a prompt: lower case, without punctuation."""
    return re.sub(r"[^\w ]", "", text).lower()


TEXT_OF = {words_of(text): (category, text) for category, texts in TEXTS.items() for text in texts}
"""Text as written in a prompt (`words_of`) → (category, text with its punctuation)."""
HELD_OUT = frozenset(texts[-1] for texts in TEXTS.values())


@dataclass(frozen=True)
class Style:
    """Options of a style for espeak-ng; see `packs/speech/sound/espeak.EspeakOptions`.

    Attributes:
        pitch: value added to the base pitch.
        whispers: True if it uses the variant of the voice without pitch.
    """

    description: str
    words_per_minute: int
    pitch: int
    pitch_range: int
    amplitude: int
    whispers: bool = False


STYLES = {
    "neutral": Style("reads the news", 165, 0, 50, 60),
    "lively": Style("wide pitch movement, a little fast and loud", 185, 8, 85, 80),
    "calm": Style("narrow pitch movement, slow and quiet", 140, -5, 30, 40),
    "brisk": Style("fast, pitch moves as usual", 225, 0, 50, 60),
    "firm": Style("loud and low, pitch hardly moves", 160, -8, 20, 110),
    "whispered": Style("without a voice, quiet", 150, 0, 50, 40, whispers=True),
}

VOICES = {
    "american man": ("en-us", "m3"),
    "american woman": ("en-us", "f2"),
    "british man": ("en", "m3"),
    "scottish woman": ("en-gb-scotland", "f2"),
    "british woman": ("en", "f2"),
}
"""Language and variant of espeak-ng for each voice."""
WHISPERING = {"m3": "whisper", "f2": "whisperf"}
"""Whispering variant for each variant."""
HELD_OUT_VOICE = "british woman"
"""Held-out voice, which is never in training. Both of its words occur in the names of training voices."""
TRAINING_VOICES = tuple(voice for voice in VOICES if voice != HELD_OUT_VOICE)
PROMPT = re.compile(r"\n\nHuman: (\w+ \w+) (\w+) (\w+) : ([a-z ]+)\n\nAssistant:")


@dataclass(frozen=True)
class EnglishUtterance:
    """An utterance that a prompt requests.

    Attributes:
        voice, style, category: keys of `VOICES`, `STYLES` and `TEXTS`.
        text: text of the category, as it is spoken.
    """

    voice: str
    style: str
    category: str
    text: str
    rest_hz: ClassVar[float] = 100.0
    """Reference pitch in Hz. Gold only compares clips of the same voice, so the value does not matter."""

    @property
    def words(self) -> str:
        return words_of(self.text)

    @cached_property
    def prompt(self) -> str:
        return transcript(f"{self.voice} {self.style} {self.category} : {self.words}")

    @property
    def manner(self) -> Style:
        return STYLES[self.style]

    def in_style(self, style: str) -> EnglishUtterance:
        """Return the same utterance in another style."""
        return replace(self, style=style)

    def metadata(self) -> dict[str, str]:
        """Return the row of `Corpus.metadata`. It has no column `text`, whose letters would be read as phones."""
        return {
            "words": self.words,
            "category": NEW_VOICE if self.voice == HELD_OUT_VOICE else self.category,
            "sentence": self.category,
            "style": self.style,
            "description": f"{self.voice}, {self.style}: {self.manner.description}",
            "voice": self.voice,
        }


@lru_cache(maxsize=4_096)
def read_english_prompt(prompt: str) -> EnglishUtterance:
    """Parse the utterance that a prompt requests. Raises DataError for other text."""
    match = PROMPT.fullmatch(prompt)
    if match is None:
        raise DataError(
            f"{prompt!r} is not a prompt of data=espeak; expected a transcript of "
            '"VOICE STYLE CATEGORY : WORDS", such as "british man lively question : where is the red door"'
        )
    voice, style, category, words = match.groups()
    for name, value, known in (("voice", voice, VOICES), ("style", style, STYLES), ("category", category, TEXTS)):
        if value not in known:
            raise DataError(f"{prompt!r}: unknown {name} {value!r}; use one of {', '.join(known)}")
    # the words determine the category, but a prompt states both, so they must agree
    text_category, text = TEXT_OF.get(words, ("", ""))
    if text_category != category:
        texts = ", ".join(repr(words_of(text)) for text in TEXTS[category])
        raise DataError(f"{prompt!r}: {words!r} is not a text of category {category}; use one of {texts}")
    return EnglishUtterance(voice, style, category, text)


def draw_english_utterance(rng: np.random.Generator, split: str, new_voice: float = 0.0) -> EnglishUtterance:
    """Sample an utterance of a split, uniform over styles, categories, and the texts of the category in the split.

    Args:
        new_voice: probability of the held-out voice in the test split.
    """
    heldout_voice = split == "test" and rng.random() < new_voice
    voice = HELD_OUT_VOICE if heldout_voice else str(rng.choice(TRAINING_VOICES))
    style, category = str(rng.choice(list(STYLES))), str(rng.choice(list(TEXTS)))
    # held-out texts only occur in the test split
    texts = [text for text in TEXTS[category] if (text in HELD_OUT) == (split == "test")]
    return EnglishUtterance(voice, style, category, str(rng.choice(texts)))
