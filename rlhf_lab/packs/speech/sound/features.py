"""Seven acoustic features of a clip, and their extraction from many clips.

A feature that a clip does not have is NaN, never a number that looks measured: pitch and HNR of a clip without voiced
frames; all features of a clip without sound, but that nothing in it is voiced and all is silence. `fill_undefined` puts
a documented value in their place, for rewards, which have to say what such a clip is worth.

"Sounding" frames are those of `Spectra.sounding_T`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.console import Ticker
from rlhf_lab.core.console import progress as show
from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import RATE, read_wav
from rlhf_lab.packs.speech.sound.feature_cache import FeatureCache
from rlhf_lab.packs.speech.sound.periodicity import Periodicity, periodicity
from rlhf_lab.packs.speech.sound.spectrum import MEL_FILTERS, Spectra, spectra

VERSION = 1
"""Raised whenever a feature of the same clip changes, so that caches of before are not read."""


@dataclass(frozen=True)
class Feature:
    """One column of the features.

    Attributes:
        if_undefined: the documented value of a clip that does not have it; None where every clip has it.
    """

    name: str
    unit: str
    meaning: str
    if_undefined: float | None = None


FEATURES = (
    Feature(
        "pitch_sd",
        "semitones",
        "standard deviation of 12 log2 F0 over voiced frames, of which it needs two (monotone speech has little)",
        if_undefined=0.0,
    ),
    Feature(
        "hnr",
        "dB",
        "harmonics-to-noise ratio, mean over voiced frames (Boersma 1993; hoarse or noisy speech has little)",
        # a voiced frame has at least the tracker's share of periodic power, .45, and so −.9 dB
        if_undefined=-1.0,
    ),
    Feature("voiced_fraction", "share", "voiced frames of all frames"),
    Feature("energy_dynamics", "dB", "standard deviation of the level over sounding frames", if_undefined=0.0),
    Feature(
        "mfcc_stability",
        "share",
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
    Feature("silence_fraction", "share", "frames that do not sound, of all frames"),
)
NAMES = tuple(feature.name for feature in FEATURES)


def extract(audio: Audio) -> NDArray[np.float64]:
    """The features of a clip, (7,), in the order of `FEATURES`; NaN for those that the clip does not have."""
    short_time = spectra(audio)
    sounding_T = short_time.sounding_T
    tracked = periodicity(audio)
    values = {
        "pitch_sd": _pitch_sd(tracked),
        "hnr": tracked.mean_hnr,
        "voiced_fraction": _mean(tracked.voiced_T, without=0.0),
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
) -> NDArray[np.float64]:
    """The features of clips, (N, 7). Clips of the same content are measured once.

    Args:
        clips: audio, or WAV files, which are read one at a time.
        rate: samples a second that files must have.
        resample: convert files of another rate.
        progress: what the work is called while it is shown; not shown without.
        cache: file of features by the clips' content. What was measured before an interruption is in it.
        unreadable: receives what is wrong with clips that cannot be read, by index; their rows are NaN. Without it
            they are an error.

    Raises:
        DataError: files cannot be read, or are outside the limits of `read_wav`; all of them are listed, after the rest
            has been measured.
    """
    features_N7 = np.full((len(clips), len(FEATURES)), np.nan)
    problems: dict[int, str] = {} if unreadable is None else unreadable
    measured: dict[str, NDArray[np.float64]] = {}
    shown: AbstractContextManager[Ticker | None] = show(progress, len(clips)) if progress else nullcontext()
    with FeatureCache(Path(cache) if cache else None, len(FEATURES)) as stored, shown as ticker:
        for row, clip in enumerate(clips):
            try:
                audio = clip if isinstance(clip, Audio) else read_wav(clip, rate, resample=resample)
            except DataError as error:
                problems[row] = str(error)
                continue
            key = content_key(audio)
            if key not in measured:
                known = stored.get(key)
                measured[key] = extract(audio) if known is None else known
                if known is None:
                    stored.add(key, measured[key])
            features_N7[row] = measured[key]
            if ticker:
                ticker.advance()
    if problems and unreadable is None:
        raise DataError(f"{len(problems)} of {len(clips)} clips cannot be measured:\n" + "\n".join(problems.values()))
    return features_N7


def fill_undefined(features_N7: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features with `Feature.if_undefined` wherever one is NaN: the lowest value that a clip could have.

    Raises LabError for NaN in a feature that every clip has.
    """
    filled_N7 = features_N7.copy()
    for column, feature in enumerate(FEATURES):
        if feature.if_undefined is not None:
            is_undefined_N = np.isnan(features_N7[:, column])
            filled_N7[is_undefined_N, column] = feature.if_undefined
    if np.isnan(filled_N7).any():
        row, column = np.argwhere(np.isnan(filled_N7))[0]
        raise LabError(f"row {row}: {NAMES[column]} is NaN, which no clip can be; take the features from extract_many")
    return filled_N7


def content_key(audio: Audio) -> str:
    """SHA-256 of a clip's samples and rate, and of what measures them."""
    digest = sha256(f"features {VERSION}, {audio.rate} Hz, ".encode())
    digest.update(np.ascontiguousarray(audio.samples_N, dtype=np.float32).tobytes())
    return digest.hexdigest()


def as_row(features_7: NDArray[np.float64]) -> Mapping[str, float]:
    """Name → value."""
    return dict(zip(NAMES, map(float, features_7), strict=True))


def _pitch_sd(tracked: Periodicity) -> float:
    f0_V = tracked.f0_T[tracked.voiced_T]
    return float((12 * np.log2(f0_V)).std()) if len(f0_V) > 1 else math.nan


def _stability(short_time: Spectra, sounding_T: NDArray[np.bool_]) -> float:
    steps_TC = np.diff(short_time.mfcc_TC()[:, 1:], axis=0)
    # the transform is orthonormal: squared differences of coefficients and of filters have the same sum
    distance_T = np.sqrt((steps_TC**2).sum(axis=1) / MEL_FILTERS)
    is_pair_T = sounding_T[1:] & sounding_T[:-1]
    return 1 / (1 + float(distance_T[is_pair_T].mean())) if is_pair_T.any() else math.nan


def _mean(values_T: NDArray[np.generic], without: float) -> float:
    return float(values_T.astype(np.float64).mean()) if len(values_T) else without
