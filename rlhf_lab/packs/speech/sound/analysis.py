"""Analysis of samples into frames, so that any audio can be encoded with the codec.

The envelope comes from the power spectrum of a window, averaged over a width of F0 or more, so that single harmonics do
not appear in it. A high voice has too few harmonics to show its lowest resonances.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import RATE
from rlhf_lab.packs.speech.sound.frame_grid import frames as windows_of
from rlhf_lab.packs.speech.sound.periodicity import Periodicity, PitchTracking, periodicity
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, SILENCE_DB, Frames, band_centres

STEP = RATE // FRAMES_PER_SECOND
"""Number of samples in a frame."""
WINDOW = 800
"""Number of samples in the window of an envelope: 50 ms, slightly longer than a frame."""
POINTS = 2048
"""Number of points of the Fourier transform; zero padding of the window makes the bins narrower."""
SUBFRAMES = 4
"""Number of pitch points per frame."""
TRACKING = PitchTracking(f0_min=65.0, f0_max=400.0, octave_cost=0.1)
"""Settings of the pitch tracker. In breathy voices, two or three periods match almost as well as one. A larger octave
cost therefore favours the single period."""
UNVOICED_HZ = 200.0
"""Width in Hz over which the spectrum of an unvoiced frame is averaged."""
NARROWEST_HZ = 80.0
"""Minimum width of a band in Hz. It applies if F0 is lower."""


def analyse(samples: NDArray[np.floating]) -> Frames:
    """Analyse samples at `RATE` into frames. The last frame is padded with silence."""
    count = -(-len(samples) // STEP)
    # round up to complete frames
    padded = np.zeros(count * STEP, dtype=np.float32)
    padded[: len(samples)] = samples
    windows_TN = windows_of(padded, WINDOW, STEP).astype(np.float64)
    weights = np.hanning(WINDOW + 2)[1:-1]
    # normalised weights make this the mean power under the window
    power_T = (windows_TN**2) @ (weights / weights.sum())
    energy_T = 10 * np.log10(np.maximum(power_T, 10 ** (SILENCE_DB / 10)))
    f0_T, aperiodicity_T = _voice(periodicity(Audio(padded, RATE), 1 / (FRAMES_PER_SECOND * SUBFRAMES), TRACKING))
    # silent frames are unvoiced, even if the tracker finds a period in their noise
    f0_T = np.where(energy_T > SILENCE_DB, f0_T, 0.0)
    spectrum_TB = np.abs(fft.rfft(windows_TN * weights, n=POINTS, axis=1)) ** 2
    return Frames(f0_T, _envelope(spectrum_TB, f0_T), energy_T, np.where(f0_T > 0, aperiodicity_T, 1.0))


def _voice(points: Periodicity) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return F0 in Hz and aperiodicity of each frame. F0 is 0 if less than half of the points are voiced."""
    # the pitch points of a frame become a row: (T · SUBFRAMES,) → (T, SUBFRAMES)
    voiced_TP = points.voiced_T.reshape(-1, SUBFRAMES)
    counts_T = voiced_TP.sum(1)
    # F0 is averaged in octaves, the scale of pitch perception
    octaves_TP = np.log2(np.where(voiced_TP, points.f0_T.reshape(-1, SUBFRAMES), 1.0))
    f0_T = 2.0 ** (octaves_TP.sum(1) / np.maximum(counts_T, 1))
    # aperiodicity is the fraction of noise in the power: 1 / (1 + harmonics-to-noise ratio)
    ratio_TP = 10 ** (np.nan_to_num(points.hnr_T.reshape(-1, SUBFRAMES)) / 10)
    noise_TP = np.where(voiced_TP, 1 / (1 + ratio_TP), 0.0)
    return np.where(2 * counts_T >= SUBFRAMES, f0_T, 0.0), noise_TP.sum(1) / np.maximum(counts_T, 1)


def _envelope(spectrum_TB: NDArray[np.float64], f0_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shape of the spectrum in dB at the centres of the bands, (T, BANDS), with mean 0."""
    # the cumulative sum gives the power between any two frequencies as a difference
    below_TB = np.concatenate([np.zeros((len(spectrum_TB), 1)), np.cumsum(spectrum_TB, axis=1)], axis=1)
    centres = band_centres()
    width_T1 = np.where(f0_T > 0, np.maximum(f0_T, NARROWEST_HZ), UNVOICED_HZ)[:, None]
    # high bands are at least as wide as the distance between their centres, so that no frequency is skipped
    half_TD = np.maximum(width_T1, np.gradient(centres)) / 2
    low_TD, high_TD = np.maximum(centres - half_TD, 0.0), np.minimum(centres + half_TD, RATE / 2)
    power_TD = (_power_below(below_TB, high_TD) - _power_below(below_TB, low_TD)) / (high_TD - low_TD)
    decibel_TD = 10 * np.log10(np.maximum(power_TD, 1e-12))
    return cast("NDArray[np.float64]", decibel_TD - decibel_TD.mean(1, keepdims=True))


def _power_below(below_TB: NDArray[np.float64], hertz_TD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the power below frequencies, (T, D), interpolated linearly between the edges of the bins."""
    # bin b extends half a bin to either side of its frequency
    position_TD = hertz_TD * POINTS / RATE + 0.5
    left_TD = np.minimum(position_TD.astype(np.int64), below_TB.shape[1] - 2)
    fraction_TD = np.minimum(position_TD - left_TD, 1.0)
    rows_T1 = np.arange(len(below_TB))[:, None]
    return below_TB[rows_T1, left_TD] * (1 - fraction_TD) + below_TB[rows_T1, left_TD + 1] * fraction_TD
