"""Fundamental frequency and harmonics-to-noise ratio by autocorrelation.

Source: P. Boersma (1993), "Accurate short-term analysis of the fundamental frequency and the harmonics-to-noise ratio
of a sampled sound", Proceedings of the Institute of Phonetic Sciences 17, 97–110. The autocorrelation of a windowed
frame, divided by the autocorrelation of the window, has at lag τ the share r of the power that repeats after τ. Hence
HNR = 10 log10(r / (1 − r)) at the best period; a path through the candidates of all frames avoids octave errors.

Differs from the paper: the window is 64 ms (4.8 periods of the lowest F0) for both measures, voiced stretches below 30
ms do not count, the autocorrelation is interpolated by the spectrum (×2) and then by a parabola, and frames at a clip's
ends are divided by the autocorrelation of the part of the window that lies in the clip, so that there is a frame for
every hop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import HOP_SECONDS, first_start, frame_count, frames, hop_samples

UPSAMPLING = 2
"""Lags per sample. Without it the parabola loses up to 3 dB of HNR at 25 dB, where r is within .003 of 1."""
BLOCK = 256
"""Frames that are transformed at once: few enough for a processor's cache, and for long clips to need little memory."""
LARGEST_HARMONIC_SHARE = 1 - 1e-6
"""Above it, 60 dB, rounding in float32 decides."""


@dataclass(frozen=True)
class PitchTracking:
    """Settings of the tracker; defaults as in the paper and in Praat.

    Args:
        f0_min: lowest fundamental frequency, Hz.
        f0_max: highest, Hz.
        window_seconds: length of the Hann window; at least three periods of `f0_min`.
        candidates: periods that are kept of each frame.
        silence_threshold: frames whose peak is below this share of the clip's peak lean towards unvoiced.
        voicing_threshold: share of periodic power above which a frame leans towards voiced.
        octave_cost: preference for the higher of two candidates, per octave; periods of two cycles repeat as well.
        octave_jump_cost: price of a change of F0 between frames of 10 ms, per octave.
        voicing_cost: price of a change between voiced and unvoiced, per change in 10 ms.
        shortest_voice: voiced frames in shorter runs are taken for unvoiced, seconds. In fricatives noise repeats by
            chance for a frame or two, at any F0, which a standard deviation of F0 does not forgive.
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
    """F0 and HNR of each frame; frame t has its centre at (t + ½) · `hop_seconds`.

    Attributes:
        f0_T: Hz; 0 where a frame is unvoiced.
        hnr_T: harmonics-to-noise ratio, dB; NaN where a frame is unvoiced.
        whole_T: whether a frame's window lies in the clip as a whole. F0 at a clip's ends is as good as
            elsewhere; HNR there is off by more than 10 dB, as too few periods are compared.
    """

    f0_T: NDArray[np.float64]
    hnr_T: NDArray[np.float64]
    whole_T: NDArray[np.bool_]
    hop_seconds: float

    @property
    def voiced_T(self) -> NDArray[np.bool_]:
        return self.f0_T > 0

    @property
    def mean_hnr(self) -> float:
        """dB, mean over voiced frames with whole windows; where there are none over all voiced ones, else NaN."""
        is_counted_T = self.voiced_T & self.whole_T
        if not is_counted_T.any():
            is_counted_T = self.voiced_T
        return float(self.hnr_T[is_counted_T].mean()) if is_counted_T.any() else float("nan")


TRACKING = PitchTracking()


def periodicity(audio: Audio, hop_seconds: float = HOP_SECONDS, tracking: PitchTracking = TRACKING) -> Periodicity:
    """Track F0 and HNR. A clip shorter than a hop has no frames, one of zeros only unvoiced ones."""
    hop = hop_samples(audio.rate, hop_seconds)
    candidates = _candidates(audio, hop, tracking)
    path_T = _best_path(candidates, hop_seconds, tracking)
    rows_T = np.arange(len(path_T))
    # a path says 0 for unvoiced and c for candidate c − 1
    voiced_T = _long_runs(path_T > 0, round(tracking.shortest_voice / hop_seconds))
    chosen_T = np.maximum(path_T - 1, 0)
    frequency_T = candidates.f0_TC[rows_T, chosen_T]
    harmonic_T = candidates.harmonic_share_TC[rows_T, chosen_T].clip(1e-6, LARGEST_HARMONIC_SHARE)
    hnr_T = 10 * np.log10(harmonic_T / (1 - harmonic_T))
    return Periodicity(
        np.where(voiced_T, frequency_T, 0.0),
        np.where(voiced_T, hnr_T, np.nan),
        _lie_inside(len(audio.samples_N), audio.rate, hop, tracking),
        hop_seconds,
    )


def _long_runs(is_true_T: NDArray[np.bool_], shortest: int) -> NDArray[np.bool_]:
    """What is true for at least so many frames in a row."""
    edges = np.flatnonzero(np.diff(is_true_T.astype(np.int8), prepend=0, append=0))
    kept_T = np.zeros_like(is_true_T)
    for start, end in edges.reshape(-1, 2):
        kept_T[start:end] = end - start >= shortest
    return kept_T


def _lie_inside(samples: int, rate: int, hop: int, tracking: PitchTracking) -> NDArray[np.bool_]:
    window = round(tracking.window_seconds * rate)
    starts_T = np.arange(frame_count(samples, hop)) * hop - first_start(window, hop)
    return (starts_T >= 0) & (starts_T + window <= samples)


@dataclass(frozen=True)
class _Candidates:
    """Peaks of the autocorrelation of each frame, the best first; where a frame has fewer, `strength_TC` is −inf."""

    f0_TC: NDArray[np.float64]
    harmonic_share_TC: NDArray[np.float64]
    strength_TC: NDArray[np.float64]
    unvoiced_strength_T: NDArray[np.float64]


def _candidates(audio: Audio, hop: int, tracking: PitchTracking) -> _Candidates:
    samples_N = audio.samples_N - audio.samples_N.mean(dtype=np.float64) if len(audio.samples_N) else audio.samples_N
    window = round(tracking.window_seconds * audio.rate)
    frames_TW = frames(samples_N, window, hop)
    # at its right end a window is cut off by what `frames` has filled with zeros
    inside_TW = frames(np.ones(len(samples_N), np.float32), window, hop)
    clip_peak = float(np.abs(samples_N).max(initial=0.0))
    blocks = [
        _block(frames_TW[start : start + BLOCK], inside_TW[start : start + BLOCK], clip_peak, audio.rate, tracking)
        for start in range(0, max(1, len(frames_TW)), BLOCK)
    ]
    return _Candidates(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)))


def _block(
    frames_TW: NDArray[np.float32],
    inside_TW: NDArray[np.float32],
    clip_peak: float,
    rate: int,
    tracking: PitchTracking,
) -> tuple[NDArray[np.float64], ...]:
    """The fields of `_Candidates` for some frames."""
    local_peak_T = np.abs(frames_TW).max(axis=1, initial=0.0).astype(np.float64)
    r_TL = _autocorrelation(frames_TW, inside_TW, rate, tracking)
    f0_TC, share_TC = _peaks(r_TL, rate, tracking)
    # half a window has two periods of the lowest F0: with less, noise repeats by chance
    is_short_T = inside_TW.mean(axis=1) < 0.5
    share_TC[is_short_T] = -np.inf
    strength_TC = share_TC + tracking.octave_cost * np.log2(f0_TC / tracking.f0_min)
    # of an absent candidate nothing is known: the path never takes it
    absent_TC = share_TC == -np.inf
    relative_peak_T = local_peak_T / clip_peak if clip_peak else np.zeros_like(local_peak_T)
    quiet_scale = tracking.silence_threshold / (1 + tracking.voicing_threshold)
    unvoiced_T = tracking.voicing_threshold + np.maximum(0.0, 2 - relative_peak_T / quiet_scale)
    return f0_TC, np.where(absent_TC, 0.0, share_TC), np.where(absent_TC, -np.inf, strength_TC), unvoiced_T


def _autocorrelation(
    frames_TW: NDArray[np.float32], inside_TW: NDArray[np.float32], rate: int, tracking: PitchTracking
) -> NDArray[np.float32]:
    """r(τ) of each frame at lags of 1 / (UPSAMPLING · rate) seconds up to the longest period, (T, L); r(0) = 1."""
    from scipy import fft

    size = frames_TW.shape[1]
    longest_lag = int(np.ceil(rate / tracking.f0_min)) + 2
    length = fft.next_fast_len(size + longest_lag, real=True)
    hann_W = np.hanning(size + 2)[1:-1].astype(np.float32)
    lags = UPSAMPLING * longest_lag + 1

    def correlate(windowed_TW: NDArray[np.float32]) -> NDArray[np.float32]:
        spectrum_TF = fft.rfft(windowed_TW, length, axis=1)
        power_TF = spectrum_TF.real**2 + spectrum_TF.imag**2
        # zeros behind the spectrum interpolate between the lags
        return fft.irfft(power_TF, UPSAMPLING * length, axis=1)[:, :lags]

    means_T = (frames_TW * inside_TW).sum(axis=1) / inside_TW.sum(axis=1).clip(1)
    weights_TW = hann_W * inside_TW
    signal_TL = correlate((frames_TW - means_T[:, None]) * weights_TW)
    # the window of all frames but those at the ends is the same: transform each distinct one
    is_whole_T = inside_TW.all(axis=1)
    window_TL = np.empty_like(signal_TL)
    window_TL[is_whole_T] = correlate(hann_W[None])
    if not is_whole_T.all():
        window_TL[~is_whole_T] = correlate(weights_TW[~is_whole_T])
    power_T = signal_TL[:, :1]
    # no lag is divided by less than a twentieth of the window's power: little of the frame is left to compare there
    window_TL = np.maximum(window_TL / window_TL[:, :1], 0.05)
    with np.errstate(invalid="ignore", divide="ignore"):
        r_TL = signal_TL / power_T / window_TL
    return np.where(power_T > 0, r_TL, 0.0).astype(np.float32, copy=False)


def _peaks(
    r_TL: NDArray[np.float32], rate: int, tracking: PitchTracking
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """F0 and share of periodic power of each frame's highest peaks, (T, C); the share of an absent peak is −inf."""
    shortest = int(np.floor(UPSAMPLING * rate / tracking.f0_max))
    middle_TL = r_TL[:, shortest:-1]
    left_TL, right_TL = r_TL[:, shortest - 1 : -2], r_TL[:, shortest + 1 :]
    is_peak_TL = (middle_TL > 0) & (middle_TL >= left_TL) & (middle_TL > right_TL)
    height_TL = np.where(is_peak_TL, middle_TL, -np.inf)
    # a longer period needs to be better to be kept, as in the path
    lags_L = np.arange(shortest, shortest + middle_TL.shape[1])
    preference_L = tracking.octave_cost * np.log2(lags_L / (UPSAMPLING * rate / tracking.f0_min))
    count = min(tracking.candidates, height_TL.shape[1])
    ranked_TL = height_TL - preference_L.astype(np.float32)
    best_TC = np.argpartition(-ranked_TL, count - 1, axis=1)[:, :count]
    rows_T1 = np.arange(len(r_TL))[:, None]
    y0, y1, y2 = (part[rows_T1, best_TC].astype(np.float64) for part in (left_TL, middle_TL, right_TL))
    curvature_TC = y0 - 2 * y1 + y2
    slope_TC = 0.5 * (y0 - y2)
    with np.errstate(invalid="ignore", divide="ignore"):
        offset_TC = np.where(curvature_TC < 0, slope_TC / curvature_TC, 0.0)
    offset_TC = np.where(is_peak_TL[rows_T1, best_TC], offset_TC, 0.0)
    share_TC = np.where(is_peak_TL[rows_T1, best_TC], y1 - 0.5 * slope_TC * offset_TC, -np.inf)
    lag_TC = shortest + best_TC + offset_TC
    f0_TC = UPSAMPLING * rate / lag_TC
    in_range_TC = (f0_TC >= tracking.f0_min) & (f0_TC <= tracking.f0_max)
    return f0_TC, np.where(in_range_TC, share_TC, -np.inf)


def _best_path(candidates: _Candidates, hop_seconds: float, tracking: PitchTracking) -> NDArray[np.int64]:
    """The path of greatest strength minus the costs of its changes (Viterbi): 0 is unvoiced, c is candidate c − 1."""
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
    path_T[-1] = score_S.argmax()
    for t in range(count - 1, 0, -1):
        path_T[t - 1] = came_from_TS[t, path_T[t]]
    return path_T


def _change_costs(f0_TC: NDArray[np.float64], hop_seconds: float, tracking: PitchTracking) -> NDArray[np.float64]:
    """What the path pays from each state of a frame (row) to each of the next one (column), (T − 1, 1 + C, 1 + C)."""
    log_f0_TC = np.log2(f0_TC)
    states = 1 + f0_TC.shape[1]
    cost_TSS = np.full((len(f0_TC) - 1, states, states), tracking.voicing_cost)
    cost_TSS[:, 0, 0] = 0.0
    cost_TSS[:, 1:, 1:] = tracking.octave_jump_cost * np.abs(log_f0_TC[:-1, :, None] - log_f0_TC[1:, None, :])
    # the paper's costs are for frames of 10 ms
    return cost_TSS * (0.01 / hop_seconds)
