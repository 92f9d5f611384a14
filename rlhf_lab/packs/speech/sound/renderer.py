"""Frames → samples, by source and filter: pulses and noise through the frames' envelope. NumPy alone.

Frames are interpolated to 100 a second. The filter of each is the minimum-phase response of its envelope, of 512
points. A voiced stretch is a pulse per period, each through the filter of its moment and shifted by a fraction of a
sample; noise is filtered in windows of 20 ms that overlap by half. The noise is a constant of the module, so equal
frames give equal samples. Left out: the glottal pulse's own shape (it is part of the envelope), jitter and shimmer,
and noise whose share depends on the frequency.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from rlhf_lab.packs.speech.sound.audio import RATE
from rlhf_lab.packs.speech.sound.voice_frames import BANDS, FRAMES_PER_SECOND, SILENCE_DB, Frames, band_centres, mel

FINE = 4
"""Filters per frame."""
HOP = RATE // FRAMES_PER_SECOND // FINE
"""Samples from one filter to the next: 10 ms."""
POINTS = 512
BINS = POINTS // 2 + 1
DELAYS = 64
"""Steps into which a sample is divided to place a pulse."""
NOISE_WINDOWS = 512
"""Windows of noise before it repeats, 5.1 seconds."""
DB = np.log(10) / 20
"""Natural logarithm of an amplitude, per dB."""


class _FineTracks(NamedTuple):
    """The frames at 100 a second, of F = FINE × T."""

    f0_F: NDArray[np.float64]
    envelope_FD: NDArray[np.float64]
    amplitude_F: NDArray[np.float64]
    aperiodicity_F: NDArray[np.float64]


def render(frames: Frames) -> NDArray[np.float32]:
    """Samples at `RATE`, (T × RATE / FRAMES_PER_SECOND,), within −1…1."""
    if not len(frames):
        return np.zeros(0, dtype=np.float32)
    tracks = _interpolate(frames)
    filters_FB = _filters(tracks)
    length = len(tracks.f0_F) * HOP
    samples = np.zeros(length + 2 * POINTS, dtype=np.float32)
    _add_noise(samples, tracks, filters_FB)
    _add_pulses(samples, tracks, filters_FB)
    # windows of noise begin half a window before their frame's first sample
    return np.clip(samples[HOP // 2 : HOP // 2 + length], -1, 1)


def _interpolate(frames: Frames) -> _FineTracks:
    """Linear between the centres of frames: envelope and energy in dB, F0 in octaves. Voicing is that of the frame."""
    place_F = np.clip((np.arange(len(frames) * FINE) + 0.5) / FINE - 0.5, 0, len(frames) - 1)
    left_F = np.minimum(place_F.astype(np.int64), max(len(frames) - 2, 0))
    right_F = np.minimum(left_F + 1, len(frames) - 1)
    weight_F = place_F - left_F

    def between(track: NDArray[np.float64]) -> NDArray[np.float64]:
        weight = weight_F if track.ndim == 1 else weight_F[:, None]
        return track[left_F] * (1 - weight) + track[right_F] * weight

    frame_F = np.repeat(np.arange(len(frames)), FINE)
    voiced_F = frames.voiced_T[frame_F]
    f0_F = np.zeros(len(frame_F))
    if voiced_F.any():
        # beside an unvoiced frame there is nothing to interpolate to: the voiced frame's own pitch stays
        voiced = np.flatnonzero(frames.voiced_T)
        octaves_F = np.interp(place_F, voiced, np.log2(frames.f0_T[voiced]))
        own_F = np.log2(np.maximum(frames.f0_T, 1.0))[frame_F]
        both_F = frames.voiced_T[left_F] & frames.voiced_T[right_F]
        f0_F = np.where(voiced_F, 2.0 ** np.where(both_F, octaves_F, own_F), 0.0)
    amplitude_F = np.exp(DB * between(frames.energy_T))
    amplitude_F[frames.energy_T[frame_F] <= SILENCE_DB] = 0.0
    aperiodicity_F = np.where(voiced_F, frames.aperiodicity_T[frame_F], 1.0)
    return _FineTracks(f0_F, between(frames.envelope_TD), amplitude_F, aperiodicity_F)


@cache
def _basis() -> NDArray[np.complex64]:
    """(BANDS, BINS): the minimum-phase log spectrum of each band's 1 dB.

    The log magnitude is linear between the centres of bands in mel. The phase is its Hilbert transform, found by
    folding the cepstrum onto its causal half; both are linear in the envelope, so a matrix does it.
    """
    bins = mel(np.linspace(0, RATE / 2, BINS))
    centres = mel(band_centres())
    log_magnitude = np.stack([np.interp(bins, centres, row) for row in np.eye(BANDS)]) * DB
    cepstrum = fft.irfft(log_magnitude, n=POINTS, axis=1)
    cepstrum[:, 1 : POINTS // 2] *= 2
    cepstrum[:, POINTS // 2 + 1 :] = 0
    return fft.rfft(cepstrum, axis=1).astype(np.complex64)


def _filters(tracks: _FineTracks) -> NDArray[np.complex64]:
    """Spectrum of each filter, (F, BINS), whose output has the frame's energy when its input has power 1."""
    log_FB = tracks.envelope_FD.astype(np.float32) @ _basis()
    magnitude_FB = np.exp(log_FB.real)
    power_F = (magnitude_FB**2).mean(1)
    gain_F = (tracks.amplitude_F / np.sqrt(power_F)).astype(np.float32)
    spectrum_FB = np.empty_like(log_FB)
    spectrum_FB.real = np.cos(log_FB.imag)
    spectrum_FB.imag = np.sin(log_FB.imag)
    return spectrum_FB * (magnitude_FB * gain_F[:, None])


@cache
def _noise() -> NDArray[np.complex64]:
    """Spectra of windows of white noise, (NOISE_WINDOWS, BINS); windows overlap by half, and the last by the first."""
    noise = np.random.default_rng(0).standard_normal(NOISE_WINDOWS * HOP)
    window = np.hanning(2 * HOP + 1)[:-1]
    starts = np.arange(NOISE_WINDOWS) * HOP
    places = (starts[:, None] + np.arange(2 * HOP)) % len(noise)
    return fft.rfft(noise[places] * window, n=POINTS, axis=1).astype(np.complex64)


def _add_noise(samples: NDArray[np.float32], tracks: _FineTracks, filters_FB: NDArray[np.complex64]) -> None:
    """Add filtered noise, window f at sample f × HOP."""
    share_F = np.sqrt(tracks.aperiodicity_F).astype(np.float32)
    windows = _noise()[np.arange(len(share_F)) % NOISE_WINDOWS]
    pieces = fft.irfft(filters_FB * windows * share_F[:, None], n=POINTS, axis=1)
    for f, piece in enumerate(pieces):
        samples[f * HOP : f * HOP + POINTS] += piece


@cache
def _delays() -> NDArray[np.complex64]:
    """Spectra of delays by 0, 1/DELAYS, … of a sample, (DELAYS, BINS)."""
    shift = np.arange(DELAYS)[:, None] / DELAYS * np.linspace(0, np.pi, BINS)
    return np.exp(-1j * shift).astype(np.complex64)


def _add_pulses(samples: NDArray[np.float32], tracks: _FineTracks, filters_FB: NDArray[np.complex64]) -> None:
    """Add a filtered pulse wherever the phase of the voice, the sum of F0, passes a whole number."""
    f0_F = tracks.f0_F
    centres = (np.arange(len(f0_F)) + 0.5) * HOP
    sample_frame = np.repeat(np.arange(len(f0_F)), HOP)
    voiced = f0_F > 0
    if not voiced.any():
        return
    # inside a voiced stretch F0 moves smoothly from sample to sample; outside it stands still
    smooth = np.interp(np.arange(len(sample_frame)), centres[voiced], f0_F[voiced])
    cycles = np.cumsum(np.where(voiced[sample_frame], smooth, 0.0) / RATE)
    whole = np.floor(cycles)
    at = np.flatnonzero(np.diff(whole, prepend=0.0))
    if not len(at):
        return
    step = smooth[at] / RATE
    # how far before the sample the whole number was passed, in samples
    early = (cycles[at] - whole[at]) / step
    time = at - early + HOP // 2
    first = np.floor(time).astype(np.int64)
    delay = ((time - first) * DELAYS).astype(np.int64)
    frame = sample_frame[at]
    # a pulse each period P has power 1 when its height is the root of P
    height = np.sqrt((1 - tracks.aperiodicity_F[frame]) / step).astype(np.float32)
    pieces = fft.irfft(filters_FB[frame] * _delays()[delay] * height[:, None], n=POINTS, axis=1)
    for start, piece in zip(first.tolist(), pieces, strict=True):
        samples[start : start + POINTS] += piece
