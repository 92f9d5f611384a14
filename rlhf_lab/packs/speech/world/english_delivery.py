"""How espeak-ng says an utterance: options that follow from voice and style, small variations, and defects.

Rate is the program's own. The other variations and defects change the frames that the analysis finds, so that one
piece of audio serves many clips. Rates and severities are drawn from a few values for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.espeak import Espeak, Options
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, SILENCE_DB, Frames
from rlhf_lab.packs.speech.world.english_prompts import VOICES, WHISPERING, EnglishUtterance, Style

DEFECTS = {
    "monotone": 0.35,
    "fast": 0.20,
    "clipped": 0.15,
    "silences": 0.10,
    "quiet": 0.10,
    "hoarse": 0.10,
}
"""Defect → its share of deliveries with a defect."""
OF_THE_VOICE = ("monotone", "hoarse")
"""Defects that a whisper cannot have."""
SEVERITIES = (0.4, 0.7, 1.0)
RATES = (0.94, 1.0, 1.06)
SPEECH_DB = -30.0
"""What is quieter than this against the loudest frame, before the first and after the last word, is left out."""


@dataclass(frozen=True)
class EnglishDelivery:
    """One way to say an utterance; the default is the way that was asked for.

    Args:
        defect: a key of `DEFECTS`, or empty.
        severity: 0…1.
        rate: factor of the words per minute.
        movement: factor of the pitch's distance from its median.
        level: added to the energy, dB.
    """

    defect: str = ""
    severity: float = 0.0
    rate: float = 1.0
    movement: float = 1.0
    level: float = 0.0


def draw_english_delivery(rng: np.random.Generator, style: Style, good: float) -> EnglishDelivery:
    """A delivery with small variations, and with a defect unless it is one of the share `good`."""
    varied = EnglishDelivery(
        rate=float(rng.choice(RATES)),
        movement=float(np.exp(rng.normal(0, 0.12))),
        level=float(rng.normal(0, 1.0)),
    )
    if rng.random() < good:
        return varied
    possible = [defect for defect in DEFECTS if not (style.whispers and defect in OF_THE_VOICE)]
    shares = np.array([DEFECTS[defect] for defect in possible])
    defect = str(rng.choice(possible, p=shares / shares.sum()))
    severity = float(rng.choice(SEVERITIES))
    # the smaller variation of the rate would only need more audio
    return replace(varied, defect=defect, severity=severity, rate=1.0 if defect == "fast" else varied.rate)


def options_for(utterance: EnglishUtterance, delivery: EnglishDelivery) -> Options:
    """What espeak-ng is told. A hurried delivery is up to 2.1 times as fast."""
    language, variant = VOICES[utterance.voice]
    style = utterance.manner
    hurry = 1 + 1.1 * delivery.severity if delivery.defect == "fast" else 1.0
    return Options(
        voice=f"{language}+{WHISPERING[variant] if style.whispers else variant}",
        words_per_minute=round(style.words_per_minute * delivery.rate * hurry),
        pitch=50 + style.pitch,
        pitch_range=style.pitch_range,
        amplitude=style.amplitude,
    )


class Reader:
    """Reads utterances aloud with espeak-ng. What it analysed is kept, by text and options.

    Args:
        espeak: says the texts.
    """

    def __init__(self, espeak: Espeak):
        self.espeak = espeak
        self._frames: dict[tuple[str, Options], Frames] = {}

    def read(self, utterance: EnglishUtterance, delivery: EnglishDelivery) -> Frames:
        """The frames of what espeak-ng says, with the delivery's variations and its defect."""
        frames = self._said(utterance.text, options_for(utterance, delivery))
        if utterance.manner.whispers:
            # a whisper has no pitch; where the analysis finds one, it errs
            frames = replace(frames, f0_T=np.zeros(len(frames)), aperiodicity_T=np.ones(len(frames)))
        return _delivered(frames, delivery)

    def _said(self, text: str, options: Options) -> Frames:
        key = (text, options)
        if key not in self._frames:
            self._frames[key] = _trimmed(analyse(self.espeak.say(text, options)))
        return self._frames[key]


def _delivered(frames: Frames, delivery: EnglishDelivery) -> Frames:
    """Frames with the variations and the defect that are not of the rate."""
    severity = delivery.severity
    monotone = 1 - severity if delivery.defect == "monotone" else 1.0
    quieter = 18 * severity if delivery.defect == "quiet" else 0.0
    frames = _with_movement(frames, delivery.movement * monotone)
    frames = replace(frames, energy_T=np.maximum(frames.energy_T + delivery.level - quieter, SILENCE_DB))
    if delivery.defect == "hoarse":
        noise_T = np.minimum(frames.aperiodicity_T + 0.5 * severity, 0.95)
        return replace(frames, aperiodicity_T=np.where(frames.voiced_T, noise_T, frames.aperiodicity_T))
    if delivery.defect == "clipped":
        return _taken(frames, np.arange(max(1, round(len(frames) * (1 - 0.45 * severity)))))
    if delivery.defect == "silences":
        return _with_pauses(frames, round(0.4 * severity * FRAMES_PER_SECOND))
    return frames


def _trimmed(frames: Frames) -> Frames:
    """Without the silence before the first and after the last word."""
    places = np.flatnonzero(frames.energy_T > frames.energy_T.max() + SPEECH_DB)
    return _taken(frames, np.arange(places[0], places[-1] + 1))


def _taken(frames: Frames, places: NDArray[np.int64]) -> Frames:
    return Frames(
        frames.f0_T[places], frames.envelope_TD[places], frames.energy_T[places], frames.aperiodicity_T[places]
    )


def _with_movement(frames: Frames, factor: float) -> Frames:
    """The same with the pitch's distance from its median, in semitones, times a factor."""
    if not frames.voiced_T.any():
        return frames
    median = np.median(frames.f0_T[frames.voiced_T])
    ratio_T = np.where(frames.voiced_T, frames.f0_T, median) / median
    return replace(frames, f0_T=np.where(frames.voiced_T, median * ratio_T**factor, 0.0))


def _with_pauses(frames: Frames, length: int) -> Frames:
    """Two pauses of some frames, each at the quietest frame near a third and two thirds of the clip."""
    reach = len(frames) // 8
    places = np.arange(len(frames))
    for third in (2, 1):  # the later first, so that the earlier one keeps its place
        middle = len(frames) * third // 3
        around = np.arange(max(0, middle - reach), min(len(frames), middle + reach + 1))
        quietest = around[frames.energy_T[around].argmin()]
        places = np.insert(places, quietest, np.full(length, -1))
    is_pause = places < 0
    paused = _taken(frames, np.maximum(places, 0))
    return Frames(
        f0_T=np.where(is_pause, 0.0, paused.f0_T),
        envelope_TD=paused.envelope_TD,
        energy_T=np.where(is_pause, SILENCE_DB, paused.energy_T),
        aperiodicity_T=np.where(is_pause, 1.0, paused.aperiodicity_T),
    )
