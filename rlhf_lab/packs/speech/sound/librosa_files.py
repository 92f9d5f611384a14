"""Audio files of any format, and resampling, with librosa.

librosa belongs to the extra `speech`. Without it, audio.py reads WAV files and resamples with SciPy.
librosa_analysis.py measures spectra and pitch with it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency

FORMATS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64")
"""Endings of the audio files in a directory. A file that is named itself may have any ending that librosa reads."""


def import_librosa() -> Any:
    """Import librosa. Raises MissingDependency if the extra `speech` is not installed."""
    try:
        import librosa
    except ModuleNotFoundError as error:
        raise MissingDependency(*OPTIONAL["librosa"]) from error
    return librosa


def read_samples(path: Path) -> tuple[int, NDArray[np.float32]]:
    """Return the rate and the samples of a file, (N,), or (N, C) with several channels.

    Raises DataError for a file that librosa cannot read.
    """
    librosa = import_librosa()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # librosa announces each decoder that it tries; only the last error counts
            samples, rate = librosa.load(path, sr=None, mono=False)
    except PermissionError:
        raise
    # the decoders behind librosa raise many types for damaged and unknown files
    except Exception as error:
        raise DataError(
            f"{path} is damaged or has a format that librosa cannot read ({type(error).__name__}: {error}); convert it "
            "to WAV or FLAC, copy or generate it again, or leave it out"
        ) from error
    return int(rate), samples.T


def resample(samples_N: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """Resample with the high-quality filter of soxr. Overshoot at full-scale edges is clipped to −1…1."""
    resampled_N = import_librosa().resample(samples_N, orig_sr=rate, target_sr=target_rate)
    return cast("NDArray[np.float32]", resampled_N.clip(-1, 1).astype(np.float32))
