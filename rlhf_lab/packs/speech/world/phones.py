"""Phones and voices of the speech world.

A phone is an articulation target: an envelope of two to four resonances, voicing, loudness and breathiness. A voice
scales all resonances by the length of its vocal tract and has a pitch. The values are rounded from textbook tables; no
person's voice was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.packs.speech.sound.voice_frames import band_centres

PAUSE = "_"


@dataclass(frozen=True)
class Phone:
    """An articulation target.

    Args:
        resonances: frequency and bandwidth of each resonance in Hz, for a vocal tract of average length.
        tilt: slope of the source spectrum in dB per octave above 500 Hz; negative values fall.
        energy: energy in dB relative to an open vowel.
        milliseconds: duration at rate 1 in milliseconds.
        voiced: True if it has a pitch.
        aperiodicity: fraction of noise in its power, added to that of the voice.
        closure: duration in milliseconds of the silence before a stop.
    """

    resonances: tuple[tuple[float, float], ...]
    tilt: float
    energy: float
    milliseconds: float
    voiced: bool = True
    aperiodicity: float = 0.0
    closure: float = 0.0


def _vowel(*hertz: float, energy: float = 0.0) -> Phone:
    bandwidths = (90.0, 110.0, 160.0, 250.0)
    return Phone(tuple(zip((*hertz, 3500.0), bandwidths, strict=True)), -6.0, energy, 115.0)


PHONES = {
    "a": _vowel(750, 1250, 2500),
    "e": _vowel(480, 1950, 2550, energy=-1.5),
    "i": _vowel(290, 2250, 3000, energy=-4.0),
    "o": _vowel(480, 880, 2450, energy=-1.5),
    "u": _vowel(310, 720, 2250, energy=-4.5),
    "m": Phone(((250, 80), (1050, 300), (2150, 400)), -11.0, -7.0, 75.0),
    "n": Phone(((250, 80), (1550, 300), (2600, 400)), -8.0, -7.0, 75.0),
    "l": Phone(((360, 90), (1050, 150), (2850, 180)), -8.0, -5.0, 75.0),
    "r": Phone(((420, 90), (1300, 150), (1650, 150)), -8.0, -5.0, 75.0),
    "w": Phone(((300, 80), (620, 100), (2200, 300)), -10.0, -6.0, 75.0),
    "j": Phone(((270, 80), (2350, 150), (3200, 200)), -5.0, -6.0, 75.0),
    "v": Phone(((280, 150), (1100, 400), (5500, 4000)), -3.0, -11.0, 80.0, aperiodicity=0.25),
    "z": Phone(((260, 150), (4900, 700), (6500, 1200)), 0.0, -10.0, 80.0, aperiodicity=0.35),
    "f": Phone(((1500, 2500), (6900, 2500)), 0.0, -20.0, 105.0, voiced=False),
    "s": Phone(((4900, 600), (6700, 1000)), 3.0, -12.0, 105.0, voiced=False),
    "x": Phone(((2300, 500), (3400, 700)), 0.0, -11.0, 105.0, voiced=False),
    "p": Phone(((700, 500), (1700, 1200)), -6.0, -13.0, 40.0, voiced=False, closure=45.0),
    "t": Phone(((3900, 1200), (5800, 2000)), 2.0, -11.0, 40.0, voiced=False, closure=45.0),
    "k": Phone(((1800, 350), (4000, 1500)), -2.0, -11.0, 40.0, voiced=False, closure=45.0),
}
"""All phones except the pause. Each letter is a phone; x is the sound of "sh"."""
VOWELS = "aeiou"


@dataclass(frozen=True)
class Voice:
    """A speaker.

    Args:
        name: two words of a prompt: pitch and colour.
        pitch: F0 at rest in Hz.
        tract: factor of all resonances; values above 1 are a short vocal tract.
        tilt: slope in dB per octave, added to that of all phones.
    """

    name: str
    pitch: float
    tract: float
    tilt: float


PITCHES = {"low": 100.0, "mid": 138.0, "high": 188.0}
COLOURS = {"dark": (0.93, -2.0), "bright": (1.10, 1.0)}
TRAINING_VOICES = ("low dark", "low bright", "mid dark", "high bright")
HELD_OUT_VOICE = "mid bright"
"""Held-out voice, which is never in training. Both of its words occur in the names of training voices."""


def _voice(name: str) -> Voice:
    pitch, colour = name.split()
    tract, tilt = COLOURS[colour]
    return Voice(name, PITCHES[pitch], tract, tilt)


VOICES = {name: _voice(name) for name in (*TRAINING_VOICES, HELD_OUT_VOICE)}


@cache
def envelope(phone: str, voice: Voice) -> NDArray[np.float64]:
    """Return the envelope of a phone in a voice, in dB at the centres of the bands, (BANDS,), with mean 0."""
    target = PHONES[phone]
    hertz = band_centres()
    # the slope of the source starts at 500 Hz
    octaves = np.log2(np.maximum(hertz, 500.0) / 500.0)
    decibel = (target.tilt + voice.tilt) * octaves
    for centre, bandwidth in target.resonances:
        # the floor of 0.02 limits the depth of the valleys between resonances
        peak = 1 / (1 + ((hertz - centre * voice.tract) / (bandwidth / 2 + 60)) ** 2)
        decibel = decibel + 10 * np.log10(peak + 0.02)
    return np.asarray(decibel - decibel.mean())
