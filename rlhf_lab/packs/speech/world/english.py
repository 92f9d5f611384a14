"""Prompts of the espeak-ng world, and their deliveries: a voice, a style, a category, and one of 30 English texts.

    british woman lively question : where is the red door

A prompt is a transcript of one human turn with this content: the words of the text without capitals and punctuation.
The last text of each category is held out. Its words also occur in other texts, so a model has seen all of them.

Only the speaking rate of a delivery is set in espeak-ng. The other variations and defects change the analysed frames,
and rates and severities have only a few values, so that one piece of audio can be reused for many clips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import ClassVar

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.splits import transcript
from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.espeak import Espeak, EspeakOptions
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, SILENCE_DB, Frames
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


DEFECTS = {"monotone": 0.35, "fast": 0.20, "clipped": 0.15, "silences": 0.10, "quiet": 0.10, "hoarse": 0.10}
"""Defects and their fractions of all deliveries with a defect."""
OF_THE_VOICE = ("monotone", "hoarse")
"""Defects that need a voice, so that a whisper cannot have them."""
SEVERITIES = (0.4, 0.7, 1.0)
RATES = (0.94, 1.0, 1.06)
SPEECH_DB = -30.0
"""Threshold in dB relative to the loudest frame. Quieter frames before the first and after the last word are cut."""


@dataclass(frozen=True)
class EnglishDelivery:
    """A delivery of an utterance; the default is exactly as requested.

    Args:
        defect: key of `DEFECTS`; empty for no defect.
        rate: factor of the words per minute.
        movement: factor of the distance between the pitch and its median.
        level: value in dB added to the energy.
    """

    defect: str = ""
    severity: float = 0.0
    rate: float = 1.0
    movement: float = 1.0
    level: float = 0.0


def draw_english_delivery(rng: np.random.Generator, style: Style, good: float) -> EnglishDelivery:
    """Sample a delivery with small variations. It has no defect with probability `good`."""
    varied = EnglishDelivery(
        rate=float(rng.choice(RATES)), movement=float(np.exp(rng.normal(0, 0.12))), level=float(rng.normal(0, 1.0))
    )
    if rng.random() < good:
        return varied
    # the fractions of the remaining defects are renormalised
    possible = [defect for defect in DEFECTS if not (style.whispers and defect in OF_THE_VOICE)]
    fractions = np.array([DEFECTS[defect] for defect in possible])
    defect = str(rng.choice(possible, p=fractions / fractions.sum()))
    severity = float(rng.choice(SEVERITIES))
    # a hurried delivery ignores the small variation of the rate, which would only need more audio
    return replace(varied, defect=defect, severity=severity, rate=1.0 if defect == "fast" else varied.rate)


def options_for(utterance: EnglishUtterance, delivery: EnglishDelivery) -> EspeakOptions:
    """Return the options of espeak-ng for a delivery. A hurried delivery is up to 2.1 times as fast."""
    language, variant = VOICES[utterance.voice]
    style = utterance.manner
    hurry = 1 + 1.1 * delivery.severity if delivery.defect == "fast" else 1.0
    return EspeakOptions(
        voice=f"{language}+{WHISPERING[variant] if style.whispers else variant}",
        words_per_minute=round(style.words_per_minute * delivery.rate * hurry),
        pitch=50 + style.pitch,
        pitch_range=style.pitch_range,
        amplitude=style.amplitude,
    )


class EspeakReader:
    """Renderer of utterances with espeak-ng. It caches the analysed frames by text and options."""

    def __init__(self, espeak: Espeak):
        self.espeak = espeak
        # synthesis and analysis are slow, and only the rate and the style change the audio
        self._frames = cache(lambda text, options: _trimmed(analyse(espeak.say(text, options))))

    def read(self, utterance: EnglishUtterance, delivery: EnglishDelivery) -> Frames:
        """Return the frames of an utterance spoken by espeak-ng, with the variations and the defect of the delivery."""
        frames: Frames = self._frames(utterance.text, options_for(utterance, delivery))
        if utterance.manner.whispers:
            # a whisper has no pitch, so any pitch in the analysis is an error
            frames = replace(frames, f0_T=np.zeros(len(frames)), aperiodicity_T=np.ones(len(frames)))
        return _apply_variations(frames, delivery)


def _apply_variations(frames: Frames, delivery: EnglishDelivery) -> Frames:
    """Apply the variations and the defect, except those of the rate."""
    severity = delivery.severity
    monotone = 1 - severity if delivery.defect == "monotone" else 1.0
    quieter = 18 * severity if delivery.defect == "quiet" else 0.0
    frames = _with_movement(frames, delivery.movement * monotone)
    frames = replace(frames, energy_T=np.maximum(frames.energy_T + delivery.level - quieter, SILENCE_DB))
    if delivery.defect == "hoarse":
        # more noise in voiced frames, limited to 95 % of the power
        noise_T = np.minimum(frames.aperiodicity_T + 0.5 * severity, 0.95)
        return replace(frames, aperiodicity_T=np.where(frames.voiced_T, noise_T, frames.aperiodicity_T))
    if delivery.defect == "clipped":
        return frames.take(slice(max(1, round(len(frames) * (1 - 0.45 * severity)))))
    if delivery.defect == "silences":
        return _with_pauses(frames, round(0.4 * severity * FRAMES_PER_SECOND))
    return frames


def _trimmed(frames: Frames) -> Frames:
    """Cut off the silence before the first and after the last word."""
    positions = np.flatnonzero(frames.energy_T > frames.energy_T.max() + SPEECH_DB)
    return frames.take(slice(positions[0], positions[-1] + 1))


def _with_movement(frames: Frames, factor: float) -> Frames:
    """Scale the distance between the pitch and its median, in semitones, by a factor."""
    if not frames.voiced_T.any():
        return frames
    # the median is robust against errors of the pitch tracker
    median = np.median(frames.f0_T[frames.voiced_T])
    ratio_T = np.where(frames.voiced_T, frames.f0_T, median) / median
    # a power of the ratio is a multiple of its logarithm, and so of the distance in semitones
    return replace(frames, f0_T=np.where(frames.voiced_T, median * ratio_T**factor, 0.0))


def _with_pauses(frames: Frames, length: int) -> Frames:
    """Insert two pauses of `length` frames, at the quietest frames near one third and two thirds of the clip."""
    reach = len(frames) // 8
    positions = np.arange(len(frames))
    for third in (2, 1):  # from the end, so that the first insertion does not shift the second
        middle = len(frames) * third // 3
        around = np.arange(max(0, middle - reach), min(len(frames), middle + reach + 1))
        quietest = around[frames.energy_T[around].argmin()]
        positions = np.insert(positions, quietest, np.full(length, -1))
    is_pause = positions < 0
    paused = frames.take(np.maximum(positions, 0))
    return replace(
        paused,
        f0_T=np.where(is_pause, 0.0, paused.f0_T),
        energy_T=np.where(is_pause, SILENCE_DB, paused.energy_T),
        aperiodicity_T=np.where(is_pause, 1.0, paused.aperiodicity_T),
    )
