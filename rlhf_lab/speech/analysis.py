"""Samples → frames, so that audio of any origin can be written in a codec's codes.

Pitch and periodicity come from the autocorrelation of a window, divided by that of the window itself (Boersma 1993);
the envelope from the window's power spectrum, smoothed over one F0 so that single harmonics do not show. Each frame
stands alone: there is no search for a smooth path, so a frame at the edge of a voiced stretch may be an octave off.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from rlhf_lab.speech.voice_frames import BANDS, FRAMES_PER_SECOND, RATE, SILENCE_DB, Frames, band_centres

WINDOW = 960
"""Samples of a window, 60 ms: four periods of the lowest pitch."""
POINTS = 2048
FINER = 2
"""Lags of the autocorrelation per sample: its peaks are narrow where a voice has high overtones."""
LOWEST_F0, HIGHEST_F0 = 65.0, 420.0
VOICED = 0.42
"""Periodicity, 0…1, from which a frame counts as voiced."""
OCTAVE_COST = 0.1
"""Periodicity that a peak has to be better for each octave that it is lower: the true period, not twice of it."""
UNVOICED_SMOOTHING_HZ = 200.0


def analyse(samples: NDArray[np.floating]) -> Frames:
    """Frames of samples at `RATE`; what is left of the last frame is filled with silence."""
    step = RATE // FRAMES_PER_SECOND
    count = -(-len(samples) // step)
    margin = (WINDOW - step) // 2
    padded = np.zeros(count * step + 2 * margin)
    padded[margin : margin + len(samples)] = samples
    windows_TN = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::step][:count]
    energy_T = 10 * np.log10(np.maximum(_weighted_power(windows_TN), 10 ** (SILENCE_DB / 10)))
    spectrum_TB = np.abs(fft.rfft(_centred(windows_TN) * np.hanning(WINDOW), n=POINTS, axis=1)) ** 2
    f0_T, periodicity_T = _pitch(spectrum_TB)
    voiced_T = (periodicity_T >= VOICED) & (energy_T > SILENCE_DB)
    f0_T = np.where(voiced_T, f0_T, 0.0)
    return Frames(
        f0_T=f0_T,
        envelope_TD=_envelope(spectrum_TB, f0_T),
        energy_T=energy_T,
        aperiodicity_T=np.where(voiced_T, np.clip(1 - periodicity_T, 0, 1), 1.0),
    )


def _centred(windows_TN: NDArray[np.float64]) -> NDArray[np.float64]:
    return windows_TN - windows_TN.mean(1, keepdims=True)


def _weighted_power(windows_TN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean square, (T,), in which the middle of the window counts most."""
    weights = np.hanning(WINDOW)
    return (windows_TN**2) @ (weights / weights.sum())


@cache
def _window_correlation() -> NDArray[np.float64]:
    """Autocorrelation of the window, 1 at lag 0, at the lags of `_pitch`."""
    spectrum = np.abs(fft.rfft(np.hanning(WINDOW), n=POINTS)) ** 2
    correlation = fft.irfft(spectrum, n=FINER * POINTS)[: FINER * WINDOW]
    return np.asarray(correlation / correlation[0])


def _pitch(spectrum_TB: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The pitch in Hz and the periodicity, 0…1, each (T,), whether voiced or not. Lags are parts of a sample."""
    rate = FINER * RATE
    longest, shortest = int(rate / LOWEST_F0) + 1, int(rate / HIGHEST_F0)
    correlation_TL = fft.irfft(spectrum_TB, n=FINER * POINTS, axis=1)[:, : longest + 2]
    power_T1 = np.maximum(correlation_TL[:, :1], 1e-12)
    correlation_TL = correlation_TL / power_T1 / _window_correlation()[: longest + 2]
    lags = np.arange(shortest, longest + 1)
    middle_TL, left_TL, right_TL = (correlation_TL[:, lags + side] for side in (0, -1, 1))
    # the parabola through a peak and its neighbours: its top is higher than the middle, more so for short lags
    curvature_TL = np.maximum(2 * middle_TL - left_TL - right_TL, 1e-9)
    shift_TL = (right_TL - left_TL) / (2 * curvature_TL)
    height_TL = middle_TL + (right_TL - left_TL) * shift_TL / 4
    is_peak_TL = (middle_TL >= left_TL) & (middle_TL > right_TL)
    score_TL = np.where(is_peak_TL, height_TL - OCTAVE_COST * np.log2(lags), -np.inf)
    best_T = score_TL.argmax(1)
    rows = np.arange(len(best_T))
    found_T = is_peak_TL[rows, best_T]
    pitch_T = rate / (lags[best_T] + np.where(found_T, shift_TL[rows, best_T], 0.0))
    return pitch_T, np.where(found_T, np.clip(height_TL[rows, best_T], 0, 1), 0.0)


def _envelope(spectrum_TB: NDArray[np.float64], f0_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shape of the spectrum in dB at the centres of the bands, (T, BANDS), of mean 0."""
    hertz_per_bin = RATE / POINTS
    # the running sum makes the mean over any stretch of frequencies a difference of two values
    summed_TB = np.concatenate([np.zeros((len(spectrum_TB), 1)), np.cumsum(spectrum_TB, axis=1)], axis=1)
    centres = band_centres()
    gaps = np.gradient(centres)
    width_T1 = np.where(f0_T > 0, f0_T, UNVOICED_SMOOTHING_HZ)[:, None]
    # at least one F0 wide, and in high bands as wide as the band
    half_TD = np.maximum(width_T1, gaps) / 2
    low_TD, high_TD = centres - half_TD, np.minimum(centres + half_TD, RATE / 2)
    low_TD = np.maximum(low_TD, 0.0)
    power_TD = _sum_below(summed_TB, high_TD / hertz_per_bin + 0.5) - _sum_below(
        summed_TB, low_TD / hertz_per_bin + 0.5
    )
    decibel_TD = 10 * np.log10(np.maximum(power_TD / (high_TD - low_TD), 1e-12))
    assert decibel_TD.shape[1] == BANDS
    return np.asarray(decibel_TD - decibel_TD.mean(1, keepdims=True))


def _sum_below(summed_TB: NDArray[np.float64], place_TD: NDArray[np.float64]) -> NDArray[np.float64]:
    """The running sum at places between bins, (T, D)."""
    left = np.minimum(place_TD.astype(np.int64), summed_TB.shape[1] - 2)
    rows = np.arange(len(summed_TB))[:, None]
    weight = np.minimum(place_TD - left, 1.0)
    return np.asarray(summed_TB[rows, left] * (1 - weight) + summed_TB[rows, left + 1] * weight)
