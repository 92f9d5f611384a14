"""Observations of the recogniser (MFCC and their slopes), and the Gaussians of its states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import without_offset
from rlhf_lab.packs.speech.sound.spectrum import spectra

COEFFICIENTS = 13
SLOPE_FRAMES = 2
"""Number of frames on each side of a frame that determine its slopes (Furui 1986)."""
SILENCE_AROUND = 0.05
"""Seconds of silence added before and after a clip, so that every clip has a pause."""
DYNAMIC_RANGE = 40.0
"""Dynamic range of mel levels in dB. Lower levels are raised to this range below the clip's maximum, so that digital
silence and faint noise give the same pause."""
PRIOR_FRAMES = 20
"""Pseudo-count that smooths variances: the variance of a state is estimated as if it had this many more frames, whose
variance is the mean over all states. Without them, the variance of states with few frames would be too small."""


def observe(audio: Audio) -> NDArray[np.float32]:
    """Return MFCC 0–12 of each frame and their slopes, (T, 26). They do not depend on loudness or a constant filter.

    The mean over the sounding frames of the clip is subtracted from coefficients 1–12 (Atal 1974). The maximum of the
    clip is subtracted from coefficient 0.
    """
    from scipy import fft

    # added before the spectra are computed, so that the observations include the silence
    around = np.zeros(round(SILENCE_AROUND * audio.rate), np.float32)
    measured = spectra(Audio(np.concatenate([around, without_offset(audio.samples_N), around]), audio.rate))
    levels_TM = measured.mel_levels_TM()
    levels_TM = np.maximum(levels_TM, levels_TM.max() - DYNAMIC_RANGE)
    mfcc_TC = fft.dct(levels_TM, type=2, axis=1, norm="ortho")[:, :COEFFICIENTS]
    # relative level: the loudest frame has coefficient 0 equal to 0
    mfcc_TC[:, 0] -= mfcc_TC[:, 0].max()
    # cepstral mean subtraction removes a constant filter, such as a microphone
    if measured.sounding_T.any():
        mfcc_TC[:, 1:] -= mfcc_TC[measured.sounding_T, 1:].mean(axis=0)
    return np.concatenate([mfcc_TC, _slopes(mfcc_TC)], axis=1).astype(np.float32)


def _slopes(values_TC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the slope of the regression line through the frames around each frame. The first and last frame repeat."""
    count = len(values_TC)
    # the first and the last frame are repeated, so that all frames have a slope
    padded_TC = np.pad(values_TC, ((SLOPE_FRAMES, SLOPE_FRAMES), (0, 0)), mode="edge")
    offsets = range(-SLOPE_FRAMES, SLOPE_FRAMES + 1)
    total_TC = np.zeros_like(values_TC)
    for offset in offsets:
        total_TC += offset * padded_TC[SLOPE_FRAMES + offset : SLOPE_FRAMES + offset + count]
    return total_TC / sum(offset**2 for offset in offsets)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Diagonal Gaussians of S states over whitened observations.

    Attributes:
        whitening_DD: matrix that whitens observations: their covariance within states becomes the unit matrix.
        means_SD: mean of whitened observations in each state.
        variances_SD: variance of whitened observations in each state; covariances are assumed to be 0.
    """

    whitening_DD: NDArray[np.float64]
    means_SD: NDArray[np.float64]
    variances_SD: NDArray[np.float64]

    @classmethod
    def fit(cls, observed_TD: NDArray[np.float32], state_T: NDArray[np.int64], states: int) -> Gaussians:
        """Fit means and variances to the frames of each state. Raises DataError for a state without frames."""
        count_S1 = np.bincount(state_T, minlength=states)[:, None]
        if not count_S1.all():
            state = int(np.argmin(count_S1))
            raise DataError(
                f"state {state} of {states} has no frames; provide clips that contain it (state 0 is the pause)"
            )
        rows_TD = observed_TD.astype(np.float64)
        means_SD = _sums(rows_TD, state_T, states) / count_S1
        within_TD = rows_TD - means_SD[state_T]
        covariance_DD = within_TD.T @ within_TD / len(rows_TD)
        # a small diagonal keeps the matrix invertible if some directions do not vary, as in clips of few spectra
        smallest = 1e-6 * np.trace(covariance_DD) / len(covariance_DD) + 1e-9
        covariance_DD += smallest * np.eye(len(covariance_DD))
        # the inverse of the Cholesky factor whitens the covariance within states
        whitening_DD = np.linalg.inv(np.linalg.cholesky(covariance_DD)).T
        squares_SD = _sums((within_TD @ whitening_DD) ** 2, state_T, states)
        # after whitening the mean variance is 1, so each prior frame adds a square of 1
        variances_SD = (squares_SD + PRIOR_FRAMES) / (count_S1 + PRIOR_FRAMES)
        return cls(whitening_DD, means_SD @ whitening_DD, variances_SD)

    def logps(self, observed_TD: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the log-density of whitened observations under each state in nats, (T, S)."""
        white_TD = observed_TD @ self._float32_whitening
        squares_SD, products_SD, constant_S = self._expanded
        return np.square(white_TD) @ squares_SD.T + white_TD @ products_SD.T + constant_S

    @cached_property
    def _float32_whitening(self) -> NDArray[np.float32]:
        return self.whitening_DD.astype(np.float32)

    @cached_property
    def _expanded(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Factors of x² and of x, and the constant of Σ −½ (x − μ)² / v − ½ log 2πv.

        The expansion reduces the log-density to two matrix products.
        """
        precisions_SD = 1 / self.variances_SD
        products_SD = self.means_SD * precisions_SD
        log_norm_SD = np.log(2 * np.pi * self.variances_SD)
        constant_S = -0.5 * (self.means_SD * products_SD + log_norm_SD).sum(axis=1)
        squares_SD = -0.5 * precisions_SD
        return squares_SD.astype(np.float32), products_SD.astype(np.float32), constant_S.astype(np.float32)


def _sums(values_TD: NDArray[np.float64], state_T: NDArray[np.int64], states: int) -> NDArray[np.float64]:
    """Return the sum over the frames of each state, (S, D)."""
    sums_SD = np.zeros((states, values_TD.shape[1]))
    np.add.at(sums_SD, state_T, values_TD)
    return sums_SD
