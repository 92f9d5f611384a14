"""Spectra and pitch with librosa, for recorded audio (`features … library=librosa`, `pitch=pyin`).

The frames are those of frame_grid.py and the definitions those of spectrum.py, so that both give the same numbers.
library_comparison.py measures how closely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import first_start, frame_count, hop_samples, without_offset
from rlhf_lab.packs.speech.sound.librosa_files import import_librosa
from rlhf_lab.packs.speech.sound.periodicity import TRACKING
from rlhf_lab.packs.speech.sound.spectrum import LOWEST_POWER, MEL_FILTERS, WINDOW_SECONDS, Spectra


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
    if not frame_count(len(audio.samples_N), hop):
        return LibrosaSpectra(np.zeros((0, len(frequencies_F)), np.float32), frequencies_F, np.zeros(0), audio.rate)
    hann_W = np.hanning(window + 2)[1:-1]
    # librosa centres the window in `size` samples
    padded = _padded(audio, window, hop, extra=(size - window) // 2, size=size)
    transformed_FT = librosa.stft(
        padded, n_fft=size, hop_length=hop, win_length=window, window=hann_W / hann_W.sum(), center=False
    )
    rms_T = librosa.feature.rms(
        y=_padded(audio, window, hop), frame_length=window, hop_length=hop, center=False, dtype=np.float64
    )[0]
    # a frame of zeros has the level −inf
    with np.errstate(divide="ignore"):
        level_T = 20 * np.log10(rms_T)
    return LibrosaSpectra((np.abs(transformed_FT) ** 2).T, frequencies_F, level_T, audio.rate)


def pyin_f0(audio: Audio) -> NDArray[np.float64]:
    """Return F0 in Hz by pYIN (Mauch and Dixon 2014) on the frames of `periodicity`, (T,); 0 for unvoiced frames."""
    hop = hop_samples(audio.rate)
    if not frame_count(len(audio.samples_N), hop):
        return np.zeros(0)
    window = round(TRACKING.window_seconds * audio.rate)
    f0_T, voiced_T, _ = import_librosa().pyin(
        _padded(audio, window, hop),
        fmin=TRACKING.f0_min,
        fmax=TRACKING.f0_max,
        sr=audio.rate,
        frame_length=window,
        hop_length=hop,
        center=False,
    )
    return np.where(voiced_T, f0_T, 0.0)


def _padded(audio: Audio, window: int, hop: int, *, extra: int = 0, size: int = 0) -> NDArray[np.float32]:
    """Return the samples with zeros around them, so that frame t of librosa is frame t of frame_grid.py.

    Args:
        extra: number of samples that librosa's frame has before the window.
        size: number of samples of librosa's frame; 0 means `window`.
    """
    before = first_start(window, hop) + extra
    needed = (frame_count(len(audio.samples_N), hop) - 1) * hop + (size or window)
    after = max(0, needed - before - len(audio.samples_N))
    padded = np.pad(without_offset(audio.samples_N), (before, after))
    # samples after the last frame would start another one
    return padded[:needed]
