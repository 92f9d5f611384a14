"""How natural a clip is as the answer to a prompt: eight aspects, each 0…1, and their weighted sum.

Seven aspects compare a measurement of the clip with the same measurement of the utterance as it was asked for: said by
`perform` without variation, and through the codec as the clip was. The eighth is `intelligibility`, 1 − phone error.
What is measured are the codec's frames, never samples: gold and the acoustic rewards share neither their input nor
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, Frames

SPEECH_DB = -28.0
"""A frame is speech when it is louder than this against the loudest frames of its clip …"""
AUDIBLE_DB = -52.0
"""… and than this against full scale."""


@dataclass(frozen=True)
class Measurements:
    """What gold measures of a clip.

    Attributes:
        movement: standard deviation of the pitch over voiced frames, semitones.
        ending: mean pitch of the last quarter of the voiced frames minus that of the others, semitones.
        register: median pitch against the voice at rest, semitones.
        rate: frames of speech, in seconds: the time in which the utterance is spoken, pauses left out.
        noise: median aperiodicity of voiced frames as noise-to-harmonics ratio, dB.
        level: energy of speech, dB against full scale.
        dynamics: standard deviation of the energy of voiced frames, dB.
        pause: seconds of silence between the first and the last frame of speech.
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
    """How a measurement becomes a part of gold: points × exp(−½ (difference / width)²).

    Args:
        points: at most.
        width: difference at which 61 % of the points are left.
        factor: the difference is that of the logarithms.
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
"""Gold of a clip without any point, and of a reply that is no stream, has no whole frame or nothing audible. The points
add up to 10, so a clip that is exactly as asked for and wholly intelligible has 5."""
SOFTENING = {"movement": 0.5, "rate": 0.05}
"""Added before a logarithm is taken, in the unit of the measurement."""


def measure(frames: Frames, rest_hz: float) -> Measurements | None:
    """What gold measures; None where no frame is audible.

    Args:
        rest_hz: pitch of the voice at rest.
    """
    if not len(frames):
        return None
    loudest = np.sort(frames.energy_T)[-3:].mean()
    speech_T = (frames.energy_T > loudest + SPEECH_DB) & (frames.energy_T > AUDIBLE_DB)
    places = np.flatnonzero(speech_T)
    if not len(places):
        return None
    voiced_T = speech_T & frames.voiced_T
    semitones = 12 * np.log2(frames.f0_T[voiced_T] / rest_hz)
    aperiodicity = frames.aperiodicity_T[voiced_T]
    first, last = places[0], places[-1] + 1
    # without a voiced frame there is no pitch; the values are then far from any that is asked for
    is_voiced = len(semitones) > 0
    # a single voiced frame is an ending of its own
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


def score_aspects(measured: Measurements, asked: Measurements) -> dict[str, float]:
    """Each of `ASPECTS` as a share of its points, 0…1."""
    shares = {}
    for item in fields(Measurements):
        aspect = ASPECTS[item.name]
        value, target = getattr(measured, item.name), getattr(asked, item.name)
        if aspect.factor:
            softening = SOFTENING[item.name]
            value, target = np.log(value + softening), np.log(target + softening)
        shares[item.name] = float(np.exp(-0.5 * ((value - target) / aspect.width) ** 2))
    return shares


def gold(shares: Mapping[str, float], error: float) -> float:
    """The true reward from the shares of the aspects and the phone error, of which more than 1 costs no more."""
    points = sum(aspect.points * shares[name] for name, aspect in ASPECTS.items())
    return LEAST + points + INTELLIGIBILITY * (1 - min(1.0, error))
