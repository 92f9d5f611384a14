"""Sounds whose F0, harmonics-to-noise ratio and formants are known."""

from __future__ import annotations

import numpy as np

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
