"""Naturalness of a clip as the response to a prompt (gold): a weighted sum of `ASPECTS` and intelligibility.

Each of `ASPECTS` compares a measurement of the clip with that of the utterance spoken exactly as requested.
Intelligibility is 1 − phone error. Gold measures the frames of the codec, never samples, so gold and the acoustic
rewards share neither input nor code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, Frames

SPEECH_DB = -28.0
"""Minimum energy of a speech frame in dB, relative to the loudest frames of its clip."""
AUDIBLE_DB = -52.0
"""Minimum energy of a speech frame in dB of full scale."""


@dataclass(frozen=True)
class Measurements:
    """Measurements of a clip for gold.

    Attributes:
        movement: standard deviation of the pitch over voiced frames, in semitones.
        ending: mean pitch of the last quarter of the voiced frames minus that of the others, in semitones.
        register: median pitch relative to the voice at rest, in semitones.
        rate: duration of the speech frames in seconds, without pauses.
        noise: median aperiodicity of voiced frames as noise-to-harmonics ratio in dB.
        level: mean energy of speech frames in dB of full scale.
        dynamics: standard deviation of the energy of voiced frames in dB.
        pause: duration of silence in seconds between the first and the last speech frame.
    """

    movement: float
    ending: float
    register: float
    rate: float
    noise: float
    level: float
    dynamics: float
    pause: float


@dataclass(frozen=True)
class Aspect:
    """Contribution of a measurement to gold: points × exp(−½ (difference / width)²).

    Args:
        points: maximum number of points.
        width: difference that gives 61 % of the points.
        factor: True to compare logarithms.
    """

    points: float
    width: float
    factor: bool = False


ASPECTS = {
    "movement": Aspect(1.6, 0.45, factor=True),
    "ending": Aspect(0.6, 2.5),
    "register": Aspect(0.3, 2.0),
    "rate": Aspect(1.0, 0.25, factor=True),
    "noise": Aspect(1.0, 6.0),
    "level": Aspect(0.3, 5.0),
    "dynamics": Aspect(0.3, 2.5),
    "pause": Aspect(0.9, 0.3),
}
INTELLIGIBILITY = 4.0
"""Points of a clip whose phones are all recognised."""
LEAST = -5.0
"""Minimum gold: a clip without points, or a response that is not a stream, has no complete frame or nothing audible.
The sum of all points is 10, so a fully intelligible clip exactly as requested has a gold of 5."""
SOFTENING = {"movement": 0.5, "rate": 0.05}
"""Values added before the logarithm, in the unit of the measurement, so that small measurements do not dominate."""


def measure(frames: Frames, rest_hz: float) -> Measurements | None:
    """Measure a clip; None if no frame is audible.

    Args:
        rest_hz: pitch of the voice at rest in Hz.
    """
    if not len(frames):
        return None
    # the mean of the three loudest frames is more robust than the maximum
    loudest = np.sort(frames.energy_T)[-3:].mean()
    speech_T = (frames.energy_T > loudest + SPEECH_DB) & (frames.energy_T > AUDIBLE_DB)
    positions = np.flatnonzero(speech_T)
    if not len(positions):
        return None
    # pitch and noise are only measured in voiced speech
    voiced_T = speech_T & frames.voiced_T
    semitones = 12 * np.log2(frames.f0_T[voiced_T] / rest_hz)
    aperiodicity = frames.aperiodicity_T[voiced_T]
    first, last = positions[0], positions[-1] + 1
    # without a voiced frame there is no pitch, so the values are far from those of any requested utterance
    is_voiced = len(semitones) > 0
    # the ending has at least one frame
    split = min(len(semitones) - 1, int(0.75 * len(semitones)))
    return Measurements(
        movement=float(semitones.std()) if is_voiced else 0.0,
        ending=float(semitones[split:].mean() - semitones[: max(split, 1)].mean()) if is_voiced else 0.0,
        register=float(np.median(semitones)) if is_voiced else -24.0,
        rate=float(speech_T.sum()) / FRAMES_PER_SECOND,
        noise=_noise_decibel(float(np.median(aperiodicity))) if is_voiced else 30.0,
        level=float(frames.energy_T[speech_T].mean()),
        dynamics=float(frames.energy_T[voiced_T].std()) if is_voiced else 0.0,
        pause=float((~speech_T[first:last]).sum()) / FRAMES_PER_SECOND,
    )


def _noise_decibel(aperiodicity: float) -> float:
    return float(10 * np.log10(aperiodicity / (1 - aperiodicity)))


def score_aspects(measured: Measurements, reference: Measurements) -> dict[str, float]:
    """Return the score of each of `ASPECTS` as a fraction of its points, 0…1."""
    fractions = {}
    for item in fields(Measurements):
        aspect = ASPECTS[item.name]
        value, target = getattr(measured, item.name), getattr(reference, item.name)
        if aspect.factor:
            softening = SOFTENING[item.name]
            value, target = np.log(value + softening), np.log(target + softening)
        fractions[item.name] = float(np.exp(-0.5 * ((value - target) / aspect.width) ** 2))
    return fractions


def gold(shares: Mapping[str, float], error: float) -> float:
    """Return the true reward.

    `shares` has the fraction of its points that each aspect reaches; a phone error above 1 counts as 1.
    """
    # LEAST plus all points gives the maximum of 5
    points = sum(aspect.points * shares[name] for name, aspect in ASPECTS.items())
    return LEAST + points + INTELLIGIBILITY * (1 - min(1.0, error))
