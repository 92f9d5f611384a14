"""Seven acoustic features of a clip, and their extraction from many clips.

An undefined feature is NaN. Examples are pitch and HNR of a clip without voiced frames. In a silent clip only
`voiced_fraction` and `silence_fraction` are defined. Rewards need a number for such clips, so `fill_undefined` replaces
NaN by a documented value.

"Sounding" frames are defined by `Spectra.sounding_T`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.core.media import Audio
from rlhf_lab.core.progress import Ticker
from rlhf_lab.core.progress import progress as show
from rlhf_lab.packs.speech.sound import librosa_analysis
from rlhf_lab.packs.speech.sound.audio import RATE, Library, read_audio
from rlhf_lab.packs.speech.sound.feature_cache import FeatureCache
from rlhf_lab.packs.speech.sound.periodicity import periodicity
from rlhf_lab.packs.speech.sound.spectrum import MEL_FILTERS, Spectra, spectra

PitchTracker = Literal["autocorrelation", "pyin"]
"""Tracker of F0: `autocorrelation` is periodicity.py, `pyin` that of librosa, which has no harmonics-to-noise ratio."""
VERSION = 2
"""Version of the features. Increase it if a feature of the same clip changes, so that old cache entries are ignored."""


@dataclass(frozen=True)
class Feature:
    """One column of the features.

    Attributes:
        if_undefined: value that replaces NaN in `fill_undefined`; None if the feature is defined for all clips.
    """

    name: str
    unit: str
    meaning: str
    if_undefined: float | None = None


FEATURES = (
    Feature(
        "pitch_sd",
        "semitones",
        "standard deviation of 12 log2 F0 over two or more voiced frames (low for monotone speech)",
        if_undefined=0.0,
    ),
    Feature(
        "hnr",
        "dB",
        "harmonics-to-noise ratio, mean over voiced frames (Boersma 1993; low for hoarse or noisy speech)",
        # the tracker requires a fraction of periodic power of .45, so a voiced frame has −.9 dB or more
        if_undefined=-1.0,
    ),
    Feature("voiced_fraction", "fraction", "fraction of frames that are voiced"),
    Feature("energy_dynamics", "dB", "standard deviation of the level over sounding frames", if_undefined=0.0),
    Feature(
        "mfcc_stability",
        "fraction",
        "1 / (1 + d): d is the mean distance of MFCC 1–12 of neighbouring sounding frames, as the root mean square "
        "difference in dB of the smoothed mel spectra (Davis and Mermelstein 1980); 1 is a sound that does not change",
        if_undefined=0.0,
    ),
    Feature(
        "spectral_centroid",
        "Hz",
        "frequency weighted by spectral magnitude, mean over sounding frames",
        if_undefined=0.0,
    ),
    Feature("silence_fraction", "fraction", "fraction of frames that are not sounding"),
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
    cache: Path | str | None = None,
    unreadable: dict[int, str] | None = None,
    library: Library = "numpy",
    pitch: PitchTracker = "autocorrelation",
) -> NDArray[np.float64]:
    """Return the features of clips, (N, 7). Clips with identical content are measured once.

    Args:
        clips: audio or files; files are read one at a time.
        rate: required sampling rate of files in Hz.
        resample: True to convert files that have another rate.
        progress: title of the progress bar; empty for no progress bar.
        cache: file that stores features by content of the clip, so that an interrupted extraction can resume.
        unreadable: dictionary that receives the problem of each unreadable clip, by index; their rows are NaN. If it
            is None, unreadable clips raise DataError.
        library, pitch: see `read_audio` and `extract`.

    Raises:
        DataError: files cannot be read or are outside the limits of `read_audio`. The message lists all of them; the
            other files have been measured by then.
    """
    # rows of unreadable clips stay NaN
    features_N7 = np.full((len(clips), len(FEATURES)), np.nan)
    problems: dict[int, str] = {} if unreadable is None else unreadable
    measured: dict[str, NDArray[np.float64]] = {}
    shown: AbstractContextManager[Ticker | None] = show(progress, len(clips)) if progress else nullcontext()
    with FeatureCache(Path(cache) if cache else None, len(FEATURES)) as stored, shown as ticker:
        for row, clip in enumerate(clips):
            try:
                audio = clip if isinstance(clip, Audio) else read_audio(clip, rate, resample=resample, library=library)
            # errors are collected, so that a single message lists all unreadable clips
            except DataError as error:
                problems[row] = str(error)
                continue
            # the key is computed even without a cache file: clips with identical content are measured once
            key = content_key(audio, library=library, pitch=pitch)
            if key not in measured:
                known = stored.get(key)
                measured[key] = extract(audio, library=library, pitch=pitch) if known is None else known
                if known is None:
                    stored.add(key, measured[key])
            features_N7[row] = measured[key]
            if ticker:
                ticker.advance()
    if problems and unreadable is None:
        raise DataError(f"{len(problems)} of {len(clips)} clips cannot be measured:\n" + "\n".join(problems.values()))
    return features_N7


def fill_undefined(features_N7: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace NaN by `Feature.if_undefined`, the lowest value that a clip could have.

    Raises LabError for NaN in a feature that is defined for all clips.
    """
    filled_N7 = features_N7.copy()
    for column, feature in enumerate(FEATURES):
        if feature.if_undefined is not None:
            is_undefined_N = np.isnan(features_N7[:, column])
            filled_N7[is_undefined_N, column] = feature.if_undefined
    if np.isnan(filled_N7).any():
        row, column = np.argwhere(np.isnan(filled_N7))[0]
        raise LabError(f"row {row}: {NAMES[column]} is NaN, which extract_many never returns; use its features")
    return filled_N7


def content_key(audio: Audio, *, library: Library = "numpy", pitch: PitchTracker = "autocorrelation") -> str:
    """Return the SHA-256 of a clip's samples and rate, of the version of the features, and of how they are measured."""
    # the defaults add nothing, so that caches of earlier versions stay valid
    method = "" if (library, pitch) == ("numpy", "autocorrelation") else f"{library}, {pitch}, "
    digest = sha256(f"features {VERSION}, {audio.rate} Hz, {method}".encode())
    digest.update(np.ascontiguousarray(audio.samples_N, dtype=np.float32).tobytes())
    return digest.hexdigest()


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
