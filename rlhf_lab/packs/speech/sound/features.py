"""Seven acoustic features of a clip, and their extraction from many clips.

An undefined feature is NaN, such as pitch and HNR of a clip without voiced frames. In a silent clip only
`voiced_fraction` and `silence_fraction` are defined. `fill_undefined` replaces NaN by a documented value. "Sounding"
frames are those of `Spectra.sounding_T`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.core.media import Audio
from rlhf_lab.core.progress import tracked
from rlhf_lab.packs.speech.sound import librosa_analysis
from rlhf_lab.packs.speech.sound.audio import RATE, Library, read_audio
from rlhf_lab.packs.speech.sound.periodicity import periodicity
from rlhf_lab.packs.speech.sound.spectrum import MEL_FILTERS, Spectra, spectra

PitchTracker = Literal["autocorrelation", "pyin"]
"""Tracker of F0: `autocorrelation` is periodicity.py, `pyin` that of librosa, which has no harmonics-to-noise ratio."""


class Feature(NamedTuple):
    """One column of the features.

    Attributes:
        if_undefined: value that replaces NaN in `fill_undefined`; None if the feature is defined for all clips.
    """

    name: str
    unit: str
    if_undefined: float | None = None


FEATURES = (
    # standard deviation of 12 log2 F0 over two or more voiced frames; low for monotone speech
    Feature("pitch_sd", "semitones", 0.0),
    # harmonics-to-noise ratio, mean over voiced frames (Boersma 1993); low for hoarse or noisy speech. The tracker
    # requires a fraction of periodic power of .45, so a voiced frame has −.9 dB or more
    Feature("hnr", "dB", -1.0),
    # fraction of frames that are voiced
    Feature("voiced_fraction", "fraction"),
    # standard deviation of the level over sounding frames
    Feature("energy_dynamics", "dB", 0.0),
    # 1 / (1 + d): d is the mean distance of MFCC 1–12 of neighbouring sounding frames, as the root mean square
    # difference in dB of the smoothed mel spectra (Davis and Mermelstein 1980); 1 is a sound that does not change
    Feature("mfcc_stability", "fraction", 0.0),
    # frequency weighted by spectral magnitude, mean over sounding frames
    Feature("spectral_centroid", "Hz", 0.0),
    # fraction of frames that are not sounding
    Feature("silence_fraction", "fraction"),
)
NAMES = tuple(feature.name for feature in FEATURES)


def extract(
    audio: Audio, *, library: Library = "numpy", pitch: PitchTracker = "autocorrelation"
) -> NDArray[np.float64]:
    """Return the features of a clip, (7,), in the order of `FEATURES`; undefined features are NaN.

    Args:
        library: library of levels, MFCC and centroid.
        pitch: tracker of `pitch_sd` and `voiced_fraction`; `hnr` is always that of periodicity.py.
    """
    short_time = librosa_analysis.spectra(audio) if library == "librosa" else spectra(audio)
    sounding_T = short_time.sounding_T
    tracked = periodicity(audio)
    f0_T = librosa_analysis.pyin_f0(audio) if pitch == "pyin" else tracked.f0_T
    values = {
        "pitch_sd": _pitch_sd(f0_T),
        "hnr": tracked.mean_hnr,
        "voiced_fraction": _mean(f0_T > 0, without=0.0),
        "energy_dynamics": float(short_time.level_T[sounding_T].std()) if sounding_T.any() else math.nan,
        "mfcc_stability": _stability(short_time, sounding_T),
        "spectral_centroid": _mean(short_time.centroid_T()[sounding_T], without=math.nan),
        "silence_fraction": _mean(~sounding_T, without=1.0),
    }
    return np.array([values[name] for name in NAMES])


def extract_many(
    clips: Sequence[Audio | Path | str],
    *,
    rate: int = RATE,
    resample: bool = False,
    progress: str = "",
    library: Library = "numpy",
    pitch: PitchTracker = "autocorrelation",
) -> NDArray[np.float64]:
    """Return the features of clips, (N, 7).

    Args:
        clips: audio or files; files are read one at a time.
        progress: title of the progress bar; empty for no progress bar.
        rate, resample, library, pitch: see `read_audio` and `extract`.

    Raises:
        DataError: files cannot be read or are outside the limits of `read_audio`. The message lists all of them.
    """
    features_N7 = np.zeros((len(clips), len(FEATURES)))
    problems = []
    for row, clip in enumerate(tracked(clips, progress) if progress else clips):
        try:
            audio = clip if isinstance(clip, Audio) else read_audio(clip, rate, resample=resample, library=library)
        except DataError as error:  # collected, so that a single message lists all unreadable clips
            problems.append(str(error))
            continue
        features_N7[row] = extract(audio, library=library, pitch=pitch)
    if problems:
        raise DataError(f"{len(problems)} of {len(clips)} clips cannot be measured:\n" + "\n".join(problems))
    return features_N7


def fill_undefined(features_N7: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace NaN by `Feature.if_undefined`, the lowest value that a clip could have.

    Raises LabError for NaN in a feature that is defined for all clips.
    """
    filled_N7 = features_N7.copy()
    for column_N, feature in zip(filled_N7.T, FEATURES, strict=True):
        if feature.if_undefined is not None:
            column_N[np.isnan(column_N)] = feature.if_undefined
    if np.isnan(filled_N7).any():
        row, column = np.argwhere(np.isnan(filled_N7))[0]
        raise LabError(f"row {row}: {NAMES[column]} is NaN, which extract_many never returns; use its features")
    return filled_N7


def _pitch_sd(f0_T: NDArray[np.float64]) -> float:
    f0_V = f0_T[f0_T > 0]
    return float((12 * np.log2(f0_V)).std()) if len(f0_V) > 1 else math.nan


def _stability(short_time: Spectra, sounding_T: NDArray[np.bool_]) -> float:
    # without coefficient 0, so that changes of loudness do not count
    steps_TC = np.diff(short_time.mfcc_TC()[:, 1:], axis=0)
    # the cosine transform is orthonormal, so the sum of squared differences is the same for coefficients and filters
    distance_T = np.sqrt((steps_TC**2).sum(axis=1) / MEL_FILTERS)
    is_pair_T = sounding_T[1:] & sounding_T[:-1]
    return 1 / (1 + float(distance_T[is_pair_T].mean())) if is_pair_T.any() else math.nan


def _mean(values_T: NDArray[np.generic], without: float) -> float:
    return float(values_T.astype(np.float64).mean()) if len(values_T) else without
