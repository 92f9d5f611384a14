"""Short-time spectra of audio on the grid of frame_grid.py: levels, centroid, mel-frequency cepstral coefficients.

Source of the coefficients (MFCC): S. Davis and P. Mermelstein (1980), "Comparison of parametric representations for
monosyllabic word recognition in continuously spoken sentences", IEEE ASSP 28 (4), 357–366. MFCC are the discrete cosine
transform of the levels of triangular filters with equal spacing on the mel scale. The filters have height 1, levels are
in dB, and the transform is orthonormal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import SILENCE_DBFS
from rlhf_lab.packs.speech.sound.frame_grid import frames, hop_samples, without_offset
from rlhf_lab.packs.speech.sound.voice_frames import mel

WINDOW_SECONDS = 0.025
MEL_FILTERS = 40
SILENCE_DB = 40.0
"""Range in dB below the loudest frame; frames below this range are silent."""
LOWEST_POWER = 1e-10
"""Power added to each filter before the logarithm: −100 dB, below the noise of 16-bit PCM."""


@dataclass(frozen=True)
class Spectra:
    """Spectra of the frames of a clip, with a Hann window of 25 ms every 10 ms.

    Attributes:
        power_TF: power at each frequency; a sine of amplitude 1 has .25 at its own frequency.
        frequencies_F: frequencies in Hz.
        level_T: root mean square of the samples in the window, in dB of full scale; −inf for zeros.
    """

    power_TF: NDArray[np.float32]
    frequencies_F: NDArray[np.float64]
    level_T: NDArray[np.float64]
    rate: int

    @property
    def sounding_T(self) -> NDArray[np.bool_]:
        """True for frames that are not silent: within `SILENCE_DB` of the loudest frame, and above `SILENCE_DBFS`."""
        loudest = self.level_T.max(initial=-np.inf)
        return (self.level_T >= loudest - SILENCE_DB) & (self.level_T >= SILENCE_DBFS)

    def mel_levels_TM(self, filters: int = MEL_FILTERS) -> NDArray[np.float64]:
        """Return the level of each mel filter in dB."""
        weights_FM = _mel_filters(self.power_TF.shape[1], self.rate, filters)
        # the added power avoids the logarithm of 0
        return 10 * np.log10(self.power_TF @ weights_FM + LOWEST_POWER)

    def mfcc_TC(self, coefficients: int = 13) -> NDArray[np.float64]:
        """Return MFCC 0 … `coefficients` − 1; coefficient 0 is the mean level times √filters."""
        from scipy import fft

        return fft.dct(self.mel_levels_TM(), type=2, axis=1, norm="ortho")[:, :coefficients]

    def centroid_T(self) -> NDArray[np.float64]:
        """Return the mean frequency weighted by magnitude in Hz; NaN for a frame of zeros."""
        magnitude_TF = np.sqrt(self.power_TF, dtype=np.float64)
        # a frame of zeros gives 0 / 0, which is the documented NaN
        with np.errstate(invalid="ignore"):
            return magnitude_TF @ self.frequencies_F / magnitude_TF.sum(axis=1)


def spectra(audio: Audio) -> Spectra:
    """Compute the spectra of a clip. A clip shorter than 10 ms has no frames."""
    from scipy import fft

    window = round(WINDOW_SECONDS * audio.rate)
    hann_W = np.hanning(window + 2)[1:-1].astype(np.float32)
    frames_TW = frames(without_offset(audio.samples_N), window, hop_samples(audio.rate))
    # next power of two, for a fast transform
    length = 1 << (window - 1).bit_length()
    # the normalised window makes the result independent of the window length
    transformed_TF = fft.rfft(frames_TW * (hann_W / hann_W.sum()), length, axis=1)
    power_TF = transformed_TF.real**2 + transformed_TF.imag**2
    mean_power_T = np.einsum("tw,tw->t", frames_TW, frames_TW) / window
    # a frame of zeros has the level −inf
    with np.errstate(divide="ignore"):
        level_T = 10 * np.log10(mean_power_T.astype(np.float64))
    return Spectra(power_TF, np.fft.rfftfreq(length, 1 / audio.rate).astype(np.float64), level_T, audio.rate)


@lru_cache(maxsize=8)
def _mel_filters(bins: int, rate: int, filters: int) -> NDArray[np.float32]:
    """Return triangular filters with equal spacing on the mel scale between 0 and rate / 2, (F, M)."""
    edges = 700 * (10 ** (np.linspace(0, mel(rate / 2), filters + 2) / 2595) - 1)
    frequencies_F1 = np.linspace(0, rate / 2, bins)[:, None]
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    # each filter rises to its centre and falls to the centre of the next filter
    rising = (frequencies_F1 - lower) / (centre - lower)
    falling = (upper - frequencies_F1) / (upper - centre)
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
