"""Deliveries of an utterance by espeak-ng: options from voice and style, small variations, and defects.

Only the speaking rate is set in espeak-ng. The other variations and defects change the analysed frames, and rates and
severities have only a few values, so that one piece of audio can be reused for many clips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.espeak import Espeak, EspeakOptions
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, SILENCE_DB, Frames
from rlhf_lab.packs.speech.world.english_prompts import VOICES, WHISPERING, EnglishUtterance, Style

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
