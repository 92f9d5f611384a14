"""Sounds whose F0, harmonics-to-noise ratio and formants are known."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from rlhf_lab.core.media import Audio

RATE = 16000


def harmonics(f0_N, seed=0, highest=7000):
    """A sum of harmonics k with amplitude 1/k and random phases, of an F0 in Hz at each sample; power 1."""
    phase_N = 2 * np.pi * np.cumsum(f0_N) / RATE
    count = max(1, int(highest / np.max(f0_N)))
    phases_K = np.random.default_rng(seed).uniform(0, 2 * np.pi, count)
    sound_N = sum(np.sin(k * phase_N + phases_K[k - 1]) / k for k in range(1, count + 1))
    return sound_N / np.sqrt((sound_N**2).mean())


def tone(f0, seconds=1.0):
    return harmonics(np.full(int(seconds * RATE), float(f0)))


def glide(low, high, seconds=1.0):
    """F0 in Hz at each sample, even in semitones."""
    return low * (high / low) ** np.linspace(0, 1, int(seconds * RATE))


def with_noise(sound_N, snr_db, seed=1):
    """White noise is added that has exactly this power below the sound's."""
    noise_N = np.random.default_rng(seed).standard_normal(len(sound_N))
    ratio = (sound_N**2).mean() / (noise_N**2).mean()
    return sound_N + noise_N * np.sqrt(ratio / 10 ** (snr_db / 10))


def audio(sound_N, peak=0.5):
    return Audio((peak * sound_N / np.abs(sound_N).max(initial=1e-9)).astype(np.float32), RATE)


def silence(seconds):
    return np.zeros(int(seconds * RATE))


VOWELS = {"i": (280, 2250), "e": (450, 1950), "a": (750, 1250), "o": (450, 850), "u": (300, 700), "y": (280, 1650)}
"""The first two formants of phones, Hz. The third is at 3,200 Hz in all."""
FRICATIVE = "s"


def say(phones, rng, f0=140.0, milliseconds=(70, 130)):
    """Phones one after the other: vowels of two formants with falling F0, noise for `s`, silence for `_`."""
    parts = []
    for phone in phones:
        count = int(rng.uniform(*milliseconds) / 1000 * RATE)
        if phone == "_":
            sound_N = np.zeros(count)
        elif phone == FRICATIVE:
            sound_N = 0.3 * np.diff(rng.standard_normal(count + 1))
        else:
            falling_N = f0 * np.linspace(1, 0.9, count)
            source_N = harmonics(falling_N, seed=int(rng.integers(99)), highest=6000)
            sound_N = resonate(source_N, *VOWELS[phone])
        parts.append(sound_N * np.hanning(count + 2)[1:-1] ** 0.3)
    said_N = np.concatenate(parts)
    return audio(said_N + 1e-3 * rng.standard_normal(len(said_N)))


def resonate(source_N, *formants_hz):
    """The source through one resonance after the other; power 1."""
    for hertz, bandwidth in zip((*formants_hz, 3200), (80, 110, 200), strict=True):
        radius = np.exp(-np.pi * bandwidth / RATE)
        feedback = [1, -2 * radius * np.cos(2 * np.pi * hertz / RATE), radius**2]
        source_N = lfilter([sum(feedback)], feedback, source_N)
    return source_N / np.sqrt((source_N**2).mean())


def draw_phones(rng):
    """Four to eight phones."""
    return [str(phone) for phone in rng.choice([*VOWELS, FRICATIVE], rng.integers(4, 9))]


def draw_speech(clips, seed):
    """Clips of four speakers, and the phones they say."""
    rng = np.random.default_rng(seed)
    phones = [draw_phones(rng) for _ in range(clips)]
    return [say(sequence, rng, f0=rng.choice([110, 140, 190, 230])) for sequence in phones], phones
