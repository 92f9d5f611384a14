"""Fundamental frequency and harmonics-to-noise ratio by autocorrelation.

Source: P. Boersma (1993), "Accurate short-term analysis of the fundamental frequency and the harmonics-to-noise ratio
of a sampled sound", Proceedings of the Institute of Phonetic Sciences 17, 97–110. The ratio of the autocorrelation of a
windowed frame and the autocorrelation of the window at lag τ is r, the fraction of the power that repeats after τ.
Hence HNR = 10 log10(r / (1 − r)) at the best period. A Viterbi path through the candidates of all frames avoids octave
errors.

Differences from the paper:
- the window is 64 ms (4.8 periods of the lowest F0) for both measures;
- voiced stretches shorter than 30 ms do not count;
- the autocorrelation is interpolated by the spectrum (×2) and then by a parabola;
- at the ends of a clip, the divisor is the autocorrelation of the part of the window inside the clip, so that every hop
  has a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import (
    HOP_SECONDS,
    first_start,
    frames,
    hop_samples,
    without_offset,
)

UPSAMPLING = 2
"""Lags per sample. Without upsampling, the parabola underestimates an HNR of 25 dB, where r is .997, by up to 3 dB."""
BLOCK = 256
"""Number of frames that are transformed at once. It fits the processor cache and limits the memory of long clips."""
LARGEST_HARMONIC_SHARE = 1 - 1e-6
"""Maximum fraction of periodic power, an HNR of 60 dB. Above it, float32 rounding errors dominate."""


@dataclass(frozen=True)
class PitchTracking:
    """Settings of the pitch tracker; the defaults are those of the paper and of Praat.

    Args:
        f0_min: minimum fundamental frequency in Hz.
        f0_max: maximum fundamental frequency in Hz.
        window_seconds: length of the Hann window in seconds; three or more periods of `f0_min`.
        candidates: maximum number of candidate periods per frame.
        silence_threshold: fraction of the clip's peak; frames with a lower peak favour unvoiced.
        voicing_threshold: fraction of periodic power above which a frame favours voiced.
        octave_cost: preference for the higher of two candidates, per octave, because two periods repeat as well as one.
        octave_jump_cost: cost of a change of F0 between frames of 10 ms, per octave.
        voicing_cost: cost of a change between voiced and unvoiced, for frames of 10 ms.
        shortest_voice: minimum duration of a voiced run in seconds; shorter runs become unvoiced. In fricatives, noise
            repeats by chance for one or two frames at any F0, which would distort the standard deviation of F0.
    """

    f0_min: float = 75.0
    f0_max: float = 500.0
    window_seconds: float = 0.064
    candidates: int = 6
    silence_threshold: float = 0.03
    voicing_threshold: float = 0.45
    octave_cost: float = 0.01
    octave_jump_cost: float = 0.35
    voicing_cost: float = 0.14
    shortest_voice: float = 0.03


@dataclass(frozen=True)
class Periodicity:
    """F0 and HNR of each frame.

    Attributes:
        f0_T: fundamental frequency in Hz; 0 for unvoiced frames.
        hnr_T: harmonics-to-noise ratio in dB; NaN for unvoiced frames.
        is_inside_T: True if the window of the frame is entirely inside the clip. At the ends of a clip F0 is reliable,
            but HNR has errors of more than 10 dB because too few periods are compared.
    """

    f0_T: NDArray[np.float64]
    hnr_T: NDArray[np.float64]
    is_inside_T: NDArray[np.bool_]

    @property
    def voiced_T(self) -> NDArray[np.bool_]:
        return self.f0_T > 0

    @property
    def mean_hnr(self) -> float:
        """Mean HNR in dB over voiced frames with windows inside the clip.

        If there are none, the mean is over all voiced frames; NaN without voiced frames.
        """
        is_counted_T = self.voiced_T & self.is_inside_T
        if not is_counted_T.any():
            is_counted_T = self.voiced_T
        return float(self.hnr_T[is_counted_T].mean()) if is_counted_T.any() else float("nan")


TRACKING = PitchTracking()


def periodicity(audio: Audio, hop_seconds: float = HOP_SECONDS, tracking: PitchTracking = TRACKING) -> Periodicity:
    """Track F0 and HNR. A clip shorter than a hop has no frames; a clip of zeros has only unvoiced frames."""
    hop = hop_samples(audio.rate, hop_seconds)
    candidates = _candidates(audio, hop, tracking)
    path_T = _best_path(candidates, hop_seconds, tracking)
    rows_T = np.arange(len(path_T))
    # state 0 of the path is unvoiced, state c is candidate c − 1
    voiced_T = _long_runs(path_T > 0, round(tracking.shortest_voice / hop_seconds))
    chosen_T = np.maximum(path_T - 1, 0)
    frequency_T = candidates.f0_TC[rows_T, chosen_T]
    harmonic_T = candidates.harmonic_fraction_TC[rows_T, chosen_T].clip(1e-6, LARGEST_HARMONIC_SHARE)
    hnr_T = 10 * np.log10(harmonic_T / (1 - harmonic_T))
    return Periodicity(
        np.where(voiced_T, frequency_T, 0.0),
        np.where(voiced_T, hnr_T, np.nan),
        _lie_inside(len(audio.samples_N), audio.rate, hop, tracking),
    )


def _long_runs(is_true_T: NDArray[np.bool_], shortest: int) -> NDArray[np.bool_]:
    """Keep only the runs of True that have `shortest` or more frames."""
    # a run starts where the difference is 1 and ends where it is −1, so edges come in pairs
    edges = np.flatnonzero(np.diff(is_true_T.astype(np.int8), prepend=0, append=0))
    kept_T = np.zeros_like(is_true_T)
    for start, end in edges.reshape(-1, 2):
        kept_T[start:end] = end - start >= shortest
    return kept_T


def _lie_inside(samples: int, rate: int, hop: int, tracking: PitchTracking) -> NDArray[np.bool_]:
    window = round(tracking.window_seconds * rate)
    starts_T = np.arange(samples // hop) * hop - first_start(window, hop)
    return (starts_T >= 0) & (starts_T + window <= samples)


class _Candidates(NamedTuple):
    """Peaks of the autocorrelation of each frame. `strength_TC` is −inf for the columns that a frame does not use."""

    f0_TC: NDArray[np.float64]
    harmonic_fraction_TC: NDArray[np.float64]
    strength_TC: NDArray[np.float64]
    unvoiced_strength_T: NDArray[np.float64]


def _candidates(audio: Audio, hop: int, tracking: PitchTracking) -> _Candidates:
    samples_N = without_offset(audio.samples_N)
    window = round(tracking.window_seconds * audio.rate)
    frames_TW = frames(samples_N, window, hop)
    # marks the samples of each window that are inside the clip; `frames` fills the others with zeros
    inside_TW = frames(np.ones(len(samples_N), np.float32), window, hop)
    clip_peak = float(np.abs(samples_N).max(initial=0.0))
    blocks = [
        _block(frames_TW[start : start + BLOCK], inside_TW[start : start + BLOCK], clip_peak, audio.rate, tracking)
        for start in range(0, max(1, len(frames_TW)), BLOCK)
    ]
    return _Candidates(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)))


def _block(
    frames_TW: NDArray[np.float32], inside_TW: NDArray[np.float32], clip_peak: float, rate: int, tracking: PitchTracking
) -> tuple[NDArray[np.float64], ...]:
    """Compute the fields of `_Candidates` for a block of frames."""
    local_peak_T = np.abs(frames_TW).max(axis=1, initial=0.0).astype(np.float64)
    r_TL = _autocorrelation(frames_TW, inside_TW, rate, tracking)
    f0_TC, fraction_TC = _peaks(r_TL, rate, tracking)
    # half a window covers two periods of the lowest F0; in a shorter one, noise repeats by chance
    is_short_T = inside_TW.mean(axis=1) < 0.5
    fraction_TC[is_short_T] = -np.inf
    strength_TC = fraction_TC + tracking.octave_cost * np.log2(f0_TC / tracking.f0_min)
    # the strength −inf keeps the path away from absent candidates
    absent_TC = fraction_TC == -np.inf
    # strength of the unvoiced candidate, as in the paper: larger in frames that are quiet relative to the clip
    relative_peak_T = local_peak_T / clip_peak if clip_peak else np.zeros_like(local_peak_T)
    quiet_scale = tracking.silence_threshold / (1 + tracking.voicing_threshold)
    unvoiced_T = tracking.voicing_threshold + np.maximum(0.0, 2 - relative_peak_T / quiet_scale)
    return f0_TC, np.where(absent_TC, 0.0, fraction_TC), np.where(absent_TC, -np.inf, strength_TC), unvoiced_T


def _autocorrelation(
    frames_TW: NDArray[np.float32], inside_TW: NDArray[np.float32], rate: int, tracking: PitchTracking
) -> NDArray[np.float32]:
    """Return r(τ) of each frame at lags of 1 / (UPSAMPLING · rate) s up to the maximum period, (T, L); r(0) = 1."""
    from scipy import fft

    size = frames_TW.shape[1]
    # zero padding by the maximum lag avoids the wrap-around of the circular correlation
    max_lag = int(np.ceil(rate / tracking.f0_min)) + 2
    length = fft.next_fast_len(size + max_lag, real=True)
    hann_W = np.hanning(size + 2)[1:-1].astype(np.float32)
    lags = UPSAMPLING * max_lag + 1

    def correlate(windowed_TW: NDArray[np.float32]) -> NDArray[np.float32]:
        spectrum_TF = fft.rfft(windowed_TW, length, axis=1)
        power_TF = spectrum_TF.real**2 + spectrum_TF.imag**2
        # the inverse transform pads the spectrum with zeros, which interpolates between the lags
        return fft.irfft(power_TF, UPSAMPLING * length, axis=1)[:, :lags]

    # the mean over the samples inside the clip is removed before windowing
    means_T = (frames_TW * inside_TW).sum(axis=1) / inside_TW.sum(axis=1).clip(1)
    weights_TW = hann_W * inside_TW
    signal_TL = correlate((frames_TW - means_T[:, None]) * weights_TW)
    # only frames at the ends of the clip have a different window, so the window of the others is transformed once
    is_full_T = inside_TW.all(axis=1)
    window_TL = np.empty_like(signal_TL)
    window_TL[is_full_T] = correlate(hann_W[None])
    if not is_full_T.all():
        window_TL[~is_full_T] = correlate(weights_TW[~is_full_T])
    power_T = signal_TL[:, :1]
    # the divisor has a minimum of 1/20 of the window's power: at long lags too little of the frame overlaps
    window_TL = np.maximum(window_TL / window_TL[:, :1], 0.05)
    with np.errstate(invalid="ignore", divide="ignore"):
        r_TL = signal_TL / power_T / window_TL
    return np.where(power_T > 0, r_TL, 0.0).astype(np.float32, copy=False)


def _peaks(
    r_TL: NDArray[np.float32], rate: int, tracking: PitchTracking
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return F0 and fraction of periodic power of the highest peaks of each frame, (T, C); −inf for absent peaks."""
    shortest = int(np.floor(UPSAMPLING * rate / tracking.f0_max))
    middle_TL = r_TL[:, shortest:-1]
    left_TL, right_TL = r_TL[:, shortest - 1 : -2], r_TL[:, shortest + 1 :]
    is_peak_TL = (middle_TL > 0) & (middle_TL >= left_TL) & (middle_TL > right_TL)
    height_TL = np.where(is_peak_TL, middle_TL, -np.inf)
    # candidates are ranked by the same criterion as in the path: a longer period must have a higher peak
    lags_L = np.arange(shortest, shortest + middle_TL.shape[1])
    preference_L = tracking.octave_cost * np.log2(lags_L / (UPSAMPLING * rate / tracking.f0_min))
    # a high `f0_min` may leave fewer lags than candidates
    count = min(tracking.candidates, height_TL.shape[1])
    ranked_TL = height_TL - preference_L.astype(np.float32)
    best_TC = np.argpartition(-ranked_TL, count - 1, axis=1)[:, :count]
    rows_T1 = np.arange(len(r_TL))[:, None]
    # parabola through the peak and its two neighbours: vertex position and height
    y0, y1, y2 = (part[rows_T1, best_TC].astype(np.float64) for part in (left_TL, middle_TL, right_TL))
    curvature_TC = y0 - 2 * y1 + y2
    slope_TC = 0.5 * (y0 - y2)
    with np.errstate(invalid="ignore", divide="ignore"):
        offset_TC = np.where(curvature_TC < 0, slope_TC / curvature_TC, 0.0)
    offset_TC = np.where(is_peak_TL[rows_T1, best_TC], offset_TC, 0.0)
    fraction_TC = np.where(is_peak_TL[rows_T1, best_TC], y1 - 0.5 * slope_TC * offset_TC, -np.inf)
    lag_TC = shortest + best_TC + offset_TC
    f0_TC = UPSAMPLING * rate / lag_TC
    in_range_TC = (f0_TC >= tracking.f0_min) & (f0_TC <= tracking.f0_max)
    return f0_TC, np.where(in_range_TC, fraction_TC, -np.inf)


def _best_path(candidates: _Candidates, hop_seconds: float, tracking: PitchTracking) -> NDArray[np.int64]:
    """Return the path with the maximum strength minus transition costs (Viterbi); state c is candidate c − 1."""
    strength_TS = np.concatenate([candidates.unvoiced_strength_T[:, None], candidates.strength_TC], axis=1)
    count = len(strength_TS)
    path_T = np.zeros(count, np.int64)
    if not count:
        return path_T
    cost_TSS = _change_costs(candidates.f0_TC, hop_seconds, tracking)
    came_from_TS = np.zeros(strength_TS.shape, np.int64)
    score_S = strength_TS[0]
    columns_S = np.arange(strength_TS.shape[1])
    for t in range(1, count):
        through_SS = score_S[:, None] - cost_TSS[t - 1]
        came_from_S = through_SS.argmax(axis=0)
        came_from_TS[t] = came_from_S
        score_S = through_SS[came_from_S, columns_S] + strength_TS[t]
    # trace the path back from the best final state
    path_T[-1] = score_S.argmax()
    for t in range(count - 1, 0, -1):
        path_T[t - 1] = came_from_TS[t, path_T[t]]
    return path_T


def _change_costs(f0_TC: NDArray[np.float64], hop_seconds: float, tracking: PitchTracking) -> NDArray[np.float64]:
    """Return the cost of each transition from a state (row) to a state of the next frame, (T − 1, 1 + C, 1 + C)."""
    log_f0_TC = np.log2(f0_TC)
    states = 1 + f0_TC.shape[1]
    cost_TSS = np.full((len(f0_TC) - 1, states, states), tracking.voicing_cost)
    cost_TSS[:, 0, 0] = 0.0
    from_TC1, to_T1C = log_f0_TC[:-1, :, None], log_f0_TC[1:, None, :]
    cost_TSS[:, 1:, 1:] = tracking.octave_jump_cost * np.abs(from_TC1 - to_T1C)
    # the costs of the paper are defined for frames of 10 ms
    return cost_TSS * (0.01 / hop_seconds)
