"""Spectra and pitch with librosa, for recorded audio (`features … library=librosa`, `pitch=pyin`).

The frames are those of frame_grid.py and the definitions those of spectrum.py, so that both give the same numbers.
`compare_libraries` measures how closely, and how long each takes (`features … compare=true`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound import spectrum
from rlhf_lab.packs.speech.sound.audio import Library, change_rate, import_librosa
from rlhf_lab.packs.speech.sound.frame_grid import first_start, hop_samples, without_offset
from rlhf_lab.packs.speech.sound.periodicity import TRACKING, periodicity
from rlhf_lab.packs.speech.sound.spectrum import LOWEST_POWER, MEL_FILTERS, WINDOW_SECONDS, Spectra

Measure = Callable[[Audio], NDArray[Any]]


@dataclass(frozen=True)
class LibrosaSpectra(Spectra):
    """Spectra whose mel levels, MFCC and centroid are computed by librosa."""

    def mel_levels_TM(self, filters: int = MEL_FILTERS) -> NDArray[np.float64]:
        librosa = import_librosa()
        # O'Shaughnessy's scale and filters of height 1, as in spectrum.py
        power_MT = librosa.feature.melspectrogram(
            S=self.power_TF.T, sr=self.rate, n_mels=filters, htk=True, norm=None, fmax=self.rate / 2
        )
        levels_MT = librosa.power_to_db(power_MT + LOWEST_POWER, amin=LOWEST_POWER, top_db=None)
        return cast("NDArray[np.float64]", levels_MT.T)

    def mfcc_TC(self, coefficients: int = 13) -> NDArray[np.float64]:
        mfcc_CT = import_librosa().feature.mfcc(S=self.mel_levels_TM().T, n_mfcc=coefficients)
        return cast("NDArray[np.float64]", mfcc_CT.T)

    def centroid_T(self) -> NDArray[np.float64]:
        magnitude_FT = np.sqrt(self.power_TF.T)
        centroid_1T = import_librosa().feature.spectral_centroid(S=magnitude_FT, freq=self.frequencies_F)
        # librosa gives 0 for a frame of zeros, which has no centroid
        return np.where(magnitude_FT.any(axis=0), centroid_1T[0], np.nan)


def spectra(audio: Audio) -> LibrosaSpectra:
    """Compute the spectra of a clip on the same frames as `spectrum.spectra`."""
    librosa = import_librosa()
    window = round(WINDOW_SECONDS * audio.rate)
    hop = hop_samples(audio.rate)
    size = 1 << (window - 1).bit_length()
    frequencies_F = librosa.fft_frequencies(sr=audio.rate, n_fft=size)
    if len(audio.samples_N) < hop:
        return LibrosaSpectra(np.zeros((0, len(frequencies_F)), np.float32), frequencies_F, np.zeros(0), audio.rate)
    hann_W = np.hanning(window + 2)[1:-1]
    same_frames = {"hop_length": hop, "center": False}
    padded_N = _padded(audio, window, hop, size)
    transformed_FT = librosa.stft(padded_N, n_fft=size, win_length=window, window=hann_W / hann_W.sum(), **same_frames)
    padded_N = _padded(audio, window, hop, window)
    rms_T = librosa.feature.rms(y=padded_N, frame_length=window, dtype=np.float64, **same_frames)[0]
    # a frame of zeros has the level −inf
    with np.errstate(divide="ignore"):
        level_T = 20 * np.log10(rms_T)
    return LibrosaSpectra((np.abs(transformed_FT) ** 2).T, frequencies_F, level_T, audio.rate)


def pyin_f0(audio: Audio) -> NDArray[np.float64]:
    """Return F0 in Hz by pYIN (Mauch and Dixon 2014) on the frames of `periodicity`, (T,); 0 for unvoiced frames."""
    hop = hop_samples(audio.rate)
    if len(audio.samples_N) < hop:
        return np.zeros(0)
    window = round(TRACKING.window_seconds * audio.rate)
    f0_T, voiced_T, _ = import_librosa().pyin(
        _padded(audio, window, hop, window),
        fmin=TRACKING.f0_min,
        fmax=TRACKING.f0_max,
        sr=audio.rate,
        frame_length=window,
        hop_length=hop,
        center=False,
    )
    return np.where(voiced_T, f0_T, 0.0)


def _padded(audio: Audio, window: int, hop: int, size: int) -> NDArray[np.float32]:
    """Return the samples with zeros around them, so that frame t of librosa is frame t of frame_grid.py.

    Args:
        size: number of samples of librosa's frame, which has the window in its middle.
    """
    before = first_start(window, hop) + (size - window) // 2
    needed = (len(audio.samples_N) // hop - 1) * hop + size
    after = max(0, needed - before - len(audio.samples_N))
    padded = np.pad(without_offset(audio.samples_N), (before, after))
    # samples after the last frame would start another one
    return padded[:needed]


class ComparedQuantity(NamedTuple):
    """One quantity, measured by both libraries on all clips.

    Attributes:
        unit: unit of the differences: dB, or % of the value of NumPy.
        median, largest: median and largest absolute difference over the compared values.
        numpy_ms, librosa_ms: processor time in milliseconds per second of audio.
    """

    name: str
    unit: str
    median: float
    largest: float
    numpy_ms: float
    librosa_ms: float


def compare_libraries(clips: Sequence[Audio]) -> list[ComparedQuantity]:
    """Measure the clips with both libraries. Raises MissingDependency without librosa.

    Levels, MFCC and centroid are compared on sounding frames, F0 on frames that both trackers call voiced, and
    resampled audio by its root mean square. The time of a quantity of the spectra includes that of the spectra.
    """
    import_librosa()
    sounding = [spectrum.spectra(clip).sounding_T for clip in clips]

    def of_spectra(name: str, unit: str, measure: Callable[[Spectra], NDArray[Any]]) -> ComparedQuantity:
        measures = (lambda clip: measure(spectrum.spectra(clip)), lambda clip: measure(spectra(clip)))
        return _compared(name, unit, clips, measures, sounding)

    def level_at_half_rate(library: Library) -> Measure:
        def measure(clip: Audio) -> NDArray[np.float64]:
            half_N = change_rate(clip.samples_N, clip.rate, round(clip.rate / 2), library).astype(np.float64)
            return np.sqrt((half_N**2).mean(keepdims=True))

        return measure

    levels = (level_at_half_rate("numpy"), level_at_half_rate("librosa"))
    trackers = (lambda clip: periodicity(clip).f0_T, pyin_f0)
    return [
        of_spectra("level (RMS)", "dB", lambda short_time: short_time.level_T),
        of_spectra("mel levels", "dB", lambda short_time: short_time.mel_levels_TM()),
        of_spectra("MFCC", "dB", lambda short_time: short_time.mfcc_TC()),
        of_spectra("centroid", "%", lambda short_time: short_time.centroid_T()),
        _compared("resampled to half the rate: level", "%", clips, levels),
        _compared("F0 (autocorrelation, pYIN)", "%", clips, trackers),
    ]


def _compared(
    name: str,
    unit: str,
    clips: Sequence[Audio],
    measures: tuple[Measure, Measure],
    kept: Sequence[NDArray[np.bool_]] | None = None,
) -> ComparedQuantity:
    """Compare two measures on the frames in `kept`; by default where neither is 0, as F0 in unvoiced frames."""
    sides, times = [], []
    for measure in measures:
        measure(clips[0])  # librosa compiles some functions at their first call
        started = time.process_time()
        sides.append([measure(clip) for clip in clips])
        times.append(1000 * (time.process_time() - started) / sum(clip.seconds for clip in clips))
    kept = kept or [(ours != 0) & (theirs != 0) for ours, theirs in zip(*sides, strict=True)]
    ours, theirs = (np.concatenate([rows[own] for rows, own in zip(side, kept, strict=True)]) for side in sides)
    difference = np.abs(theirs - ours)
    if unit == "%":
        difference = 100 * difference / np.abs(ours)
    numbers = (float(np.median(difference)), float(difference.max())) if difference.size else (np.nan, np.nan)
    return ComparedQuantity(name, unit, *numbers, *times)


def comparison_table(quantities: Sequence[ComparedQuantity], clips: Sequence[Audio]) -> Table:
    """Return a table of differences and times for the console."""
    seconds = sum(clip.seconds for clip in clips)
    table = Table(title=f"NumPy and librosa on {len(clips)} clips, {seconds:.1f} s of audio", title_justify="left")
    table.add_column("quantity")
    for column in ("median difference", "largest", "NumPy, ms per s of audio", "librosa, ms per s of audio"):
        table.add_column(column, justify="right")
    for one in quantities:
        differences = [f"{value:.2g} {one.unit}" for value in (one.median, one.largest)]
        table.add_row(one.name, *differences, f"{one.numpy_ms:.2f}", f"{one.librosa_ms:.2f}")
    return table
