"""Comparison of the two libraries that measure audio: how far their numbers differ, and how long they take.

Every quantity is measured on the same clips and the same frames. A library is called once before its time is taken,
because librosa compiles some functions at their first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound import librosa_analysis, librosa_files, spectrum
from rlhf_lab.packs.speech.sound.audio import resample_polyphase
from rlhf_lab.packs.speech.sound.periodicity import periodicity

OTHER_RATE_FRACTION = 0.5
"""Target rate of the comparison of resampling, as a fraction of the rate of the clip."""

Measure = Callable[[Audio], NDArray[Any]]


@dataclass(frozen=True)
class ComparedQuantity:
    """One quantity, measured by both libraries on all clips.

    Attributes:
        unit: unit of the differences: dB, or % of the value of NumPy.
        median, largest: median and largest absolute difference over the compared values.
        numpy_ms, librosa_ms: milliseconds per second of audio.
    """

    name: str
    unit: str
    median: float
    largest: float
    numpy_ms: float
    librosa_ms: float


def compare_libraries(clips: Sequence[Audio]) -> list[ComparedQuantity]:
    """Measure the clips with both libraries. Levels, MFCC and centroid are compared on sounding frames.

    F0 is compared on frames that both trackers call voiced, and resampled audio by its root mean square.
    Raises MissingDependency without librosa.
    """
    librosa_files.import_librosa()
    ours, theirs = ([measure(clip) for clip in clips] for measure in (spectrum.spectra, librosa_analysis.spectra))
    sounding = [short_time.sounding_T for short_time in ours]

    def in_sounding_frames(measure: Callable[[spectrum.Spectra], NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        sides = []
        for side in (ours, theirs):
            rows = [measure(short_time)[kept_T] for short_time, kept_T in zip(side, sounding, strict=True)]
            sides.append(np.concatenate(rows))
        return sides[0], sides[1]

    def quantity(
        name: str, unit: str, values: tuple[NDArray[Any], NDArray[Any]], with_numpy: Measure, with_librosa: Measure
    ) -> ComparedQuantity:
        first, second = values
        difference = np.abs(second - first)
        if unit == "%":
            difference = 100 * difference / np.abs(first)
        numbers = (float(np.median(difference)), float(difference.max())) if difference.size else (np.nan, np.nan)
        return ComparedQuantity(
            name, unit, *numbers, _milliseconds(with_numpy, clips), _milliseconds(with_librosa, clips)
        )

    def of_frames(name: str, unit: str, measure: Callable[[spectrum.Spectra], NDArray[Any]]) -> ComparedQuantity:
        """Compare a quantity of the short-time spectra. Its time includes that of the spectra."""
        return quantity(
            name,
            unit,
            in_sounding_frames(measure),
            lambda clip: measure(spectrum.spectra(clip)),
            lambda clip: measure(librosa_analysis.spectra(clip)),
        )

    return [
        of_frames("level (RMS)", "dB", lambda short_time: short_time.level_T),
        of_frames("mel levels", "dB", lambda short_time: short_time.mel_levels_TM()),
        of_frames("MFCC", "dB", lambda short_time: short_time.mfcc_TC()),
        of_frames("centroid", "%", lambda short_time: short_time.centroid_T()),
        quantity(
            "resampled to half the rate: level",
            "%",
            _levels_at_half_rate(clips),
            lambda clip: _at_half_rate(clip, resample_polyphase).samples_N,
            lambda clip: _at_half_rate(clip, librosa_files.resample).samples_N,
        ),
        quantity(
            "F0 (autocorrelation, pYIN)",
            "%",
            _both_voiced(clips),
            lambda clip: periodicity(clip).f0_T,
            librosa_analysis.pyin_f0,
        ),
    ]


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


def _at_half_rate(clip: Audio, resample: Callable[[NDArray[np.float32], int, int], NDArray[np.float32]]) -> Audio:
    target = round(clip.rate * OTHER_RATE_FRACTION)
    return Audio(resample(clip.samples_N, clip.rate, target), target)


def _levels_at_half_rate(clips: Sequence[Audio]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the root mean square of each resampled clip by both libraries, (clips,)."""
    sides = []
    for resample in (resample_polyphase, librosa_files.resample):
        halves = [_at_half_rate(clip, resample).samples_N.astype(np.float64) for clip in clips]
        sides.append(np.array([np.sqrt((half_N**2).mean()) for half_N in halves]))
    return sides[0], sides[1]


def _both_voiced(clips: Sequence[Audio]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return F0 by both trackers in the frames that both call voiced."""
    ours, theirs = [], []
    for clip in clips:
        first_T, second_T = periodicity(clip).f0_T, librosa_analysis.pyin_f0(clip)
        both_T = (first_T > 0) & (second_T > 0)
        ours.append(first_T[both_T])
        theirs.append(second_T[both_T])
    return np.concatenate(ours), np.concatenate(theirs)


def _milliseconds(measure: Measure, clips: Sequence[Audio]) -> float:
    """Return the processor time of a measurement in milliseconds per second of audio, after one unmeasured call."""
    measure(clips[0])
    started = time.process_time()
    for clip in clips:
        measure(clip)
    return 1000 * (time.process_time() - started) / sum(clip.seconds for clip in clips)
