"""Samples → frames, so that audio of any origin can be written in a codec's codes.

Pitch and periodicity are those of `periodicity.py`, four points to a frame. The envelope comes from a window's power
spectrum, averaged over at least one F0, so that single harmonics do not show; a voice with a high pitch has too few
harmonics to show its lowest resonances.
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
"""Samples of a frame."""
WINDOW = 800
"""Samples under the window of an envelope, 50 ms: a little more than its frame."""
POINTS = 2048
SUBFRAMES = 4
"""Points of the pitch per frame."""
TRACKING = PitchTracking(f0_min=65.0, f0_max=400.0, octave_cost=0.1)
"""In breathy voices, noise makes two or three periods look as alike as one: the true one needs more of an advantage."""
UNVOICED_HZ = 200.0
"""Width over which the spectrum of an unvoiced frame is averaged."""
NARROWEST_HZ = 80.0
"""Width of the narrowest band, for a pitch below it."""


def analyse(samples: NDArray[np.floating]) -> Frames:
    """Frames of samples at `RATE`; what is left of the last frame is filled with silence."""
    count = -(-len(samples) // STEP)
    padded = np.zeros(count * STEP, dtype=np.float32)
    padded[: len(samples)] = samples
    windows_TN = windows_of(padded, WINDOW, STEP).astype(np.float64)
    weights = np.hanning(WINDOW + 2)[1:-1]
    power_T = (windows_TN**2) @ (weights / weights.sum())
    energy_T = 10 * np.log10(np.maximum(power_T, 10 ** (SILENCE_DB / 10)))
    f0_T, aperiodicity_T = _voice(periodicity(Audio(padded, RATE), 1 / (FRAMES_PER_SECOND * SUBFRAMES), TRACKING))
    f0_T = np.where(energy_T > SILENCE_DB, f0_T, 0.0)
    spectrum_TB = np.abs(fft.rfft(windows_TN * weights, n=POINTS, axis=1)) ** 2
    return Frames(f0_T, _envelope(spectrum_TB, f0_T), energy_T, np.where(f0_T > 0, aperiodicity_T, 1.0))


def _voice(points: Periodicity) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """F0 (Hz, 0 where fewer than half of a frame's points are voiced) and aperiodicity of each frame."""
    voiced_TP = points.voiced_T.reshape(-1, SUBFRAMES)
    counts_T = voiced_TP.sum(1)
    octaves_TP = np.log2(np.where(voiced_TP, points.f0_T.reshape(-1, SUBFRAMES), 1.0))
    f0_T = 2.0 ** (octaves_TP.sum(1) / np.maximum(counts_T, 1))
    ratio_TP = 10 ** (np.nan_to_num(points.hnr_T.reshape(-1, SUBFRAMES)) / 10)
    noise_TP = np.where(voiced_TP, 1 / (1 + ratio_TP), 0.0)
    return np.where(2 * counts_T >= SUBFRAMES, f0_T, 0.0), noise_TP.sum(1) / np.maximum(counts_T, 1)


def _envelope(spectrum_TB: NDArray[np.float64], f0_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape of the spectrum in dB at the centres of the bands, (T, BANDS), of mean 0."""
    # with the running sum, the power between any two frequencies is a difference
    below_TB = np.concatenate([np.zeros((len(spectrum_TB), 1)), np.cumsum(spectrum_TB, axis=1)], axis=1)
    centres = band_centres()
    width_T1 = np.where(f0_T > 0, np.maximum(f0_T, NARROWEST_HZ), UNVOICED_HZ)[:, None]
    # high bands are as wide as the distance to the next one
    half_TD = np.maximum(width_T1, np.gradient(centres)) / 2
    low_TD, high_TD = np.maximum(centres - half_TD, 0.0), np.minimum(centres + half_TD, RATE / 2)
    power_TD = (_power_below(below_TB, high_TD) - _power_below(below_TB, low_TD)) / (high_TD - low_TD)
    decibel_TD = 10 * np.log10(np.maximum(power_TD, 1e-12))
    return cast("NDArray[np.float64]", decibel_TD - decibel_TD.mean(1, keepdims=True))


def _power_below(below_TB: NDArray[np.float64], hertz_TD: NDArray[np.float64]) -> NDArray[np.float64]:
    """The power below frequencies, (T, D): the running sum, linear between the borders of its bins."""
    # bin b lies half a bin to either side of its frequency
    place_TD = hertz_TD * POINTS / RATE + 0.5
    left_TD = np.minimum(place_TD.astype(np.int64), below_TB.shape[1] - 2)
    share_TD = np.minimum(place_TD - left_TD, 1.0)
    rows_T1 = np.arange(len(below_TB))[:, None]
    return below_TB[rows_T1, left_TD] * (1 - share_TD) + below_TB[rows_T1, left_TD + 1] * share_TD
