"""What the recogniser observes of a clip, and the Gaussians of its states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.spectrum import spectra

COEFFICIENTS = 13
SLOPE_FRAMES = 2
"""Frames on either side of the one whose slopes are taken (Furui 1986)."""
SILENCE_AROUND = 0.05
"""Seconds of silence before and behind a clip, so that every clip has a pause."""
DYNAMIC_RANGE = 40.0
"""dB. Mel levels further below the clip's highest one are raised to there: zeros and faint noise are the same pause."""
PRIOR_FRAMES = 20
"""Frames of the mean variance that a state's own is mixed with: states with few frames would be too certain."""


def observe(audio: Audio) -> NDArray[np.float32]:
    """MFCC 0–12 of each frame and their slopes, (T, 26). Neither loudness nor a steady filter changes them.

    The clip's mean over its sounding frames is subtracted from coefficients 1–12 (Atal 1974), its maximum from the 0th.
    """
    from scipy import fft

    around = np.zeros(round(SILENCE_AROUND * audio.rate), np.float32)
    measured = spectra(Audio(np.concatenate([around, audio.samples_N, around]), audio.rate))
    levels_TM = measured.mel_levels_TM()
    levels_TM = np.maximum(levels_TM, levels_TM.max() - DYNAMIC_RANGE)
    mfcc_TC = fft.dct(levels_TM, type=2, axis=1, norm="ortho")[:, :COEFFICIENTS]
    mfcc_TC[:, 0] -= mfcc_TC[:, 0].max()
    if measured.sounding_T.any():
        mfcc_TC[:, 1:] -= mfcc_TC[measured.sounding_T, 1:].mean(axis=0)
    return np.concatenate([mfcc_TC, _slopes(mfcc_TC)], axis=1).astype(np.float32)


def _slopes(values_TC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slope of the line through the frames around each frame, per frame; the ends are repeated beyond the clip."""
    count = len(values_TC)
    padded_TC = np.pad(values_TC, ((SLOPE_FRAMES, SLOPE_FRAMES), (0, 0)), mode="edge")
    offsets = range(-SLOPE_FRAMES, SLOPE_FRAMES + 1)
    total_TC = np.zeros_like(values_TC)
    for offset in offsets:
        total_TC += offset * padded_TC[SLOPE_FRAMES + offset : SLOPE_FRAMES + offset + count]
    return total_TC / sum(offset**2 for offset in offsets)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A Gaussian for each of S states over observations that one matrix has made nearly uncorrelated.

    Attributes:
        whitening_DD: what observations are multiplied with: their covariance within states becomes the unit matrix.
        means_SD: of multiplied observations.
        variances_SD: the same; covariances are taken as 0.
    """

    whitening_DD: NDArray[np.float64]
    means_SD: NDArray[np.float64]
    variances_SD: NDArray[np.float64]

    NAMES: ClassVar = ("whitening_DD", "means_SD", "variances_SD")

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Gaussians:
        return cls(*(np.asarray(arrays[name], dtype=np.float64) for name in cls.NAMES))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        return {name: getattr(self, name) for name in self.NAMES}

    @classmethod
    def fit(cls, observed_TD: NDArray[np.float32], state_T: NDArray[np.int64], states: int) -> Gaussians:
        """Means and variances of the frames of each state. Raises DataError for a state that has none."""
        count_S1 = np.bincount(state_T, minlength=states)[:, None]
        if not count_S1.all():
            state = int(np.argmin(count_S1))
            raise DataError(f"state {state} of {states} has no frames; give clips that have it (state 0 is the pause)")
        rows_TD = observed_TD.astype(np.float64)
        means_SD = _sums(rows_TD, state_T, states) / count_S1
        within_TD = rows_TD - means_SD[state_T]
        covariance_DD = within_TD.T @ within_TD / len(rows_TD)
        # where nothing varies, as in clips made of few spectra, the matrix could not be inverted
        smallest = 1e-6 * np.trace(covariance_DD) / len(covariance_DD) + 1e-9
        covariance_DD += smallest * np.eye(len(covariance_DD))
        whitening_DD = np.linalg.inv(np.linalg.cholesky(covariance_DD)).T
        squares_SD = _sums((within_TD @ whitening_DD) ** 2, state_T, states)
        # the variance over all states is 1
        variances_SD = (squares_SD + PRIOR_FRAMES) / (count_S1 + PRIOR_FRAMES)
        return cls(whitening_DD, means_SD @ whitening_DD, variances_SD)

    def logps(self, observed_TD: NDArray[np.float32]) -> NDArray[np.float32]:
        """Log-density of multiplied observations under each state, nats, (T, S)."""
        white_TD = observed_TD @ self._float32_whitening
        squares_SD, products_SD, constant_S = self._expanded
        return np.square(white_TD) @ squares_SD.T + white_TD @ products_SD.T + constant_S

    @cached_property
    def _float32_whitening(self) -> NDArray[np.float32]:
        return self.whitening_DD.astype(np.float32)

    @cached_property
    def _expanded(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Factors of x², of x, and the constant of Σ −½ (x − μ)² / v − ½ log 2πv: two products of matrices."""
        precisions_SD = 1 / self.variances_SD
        products_SD = self.means_SD * precisions_SD
        constant_S = -0.5 * (self.means_SD * products_SD + np.log(2 * np.pi * self.variances_SD)).sum(axis=1)
        squares_SD = -0.5 * precisions_SD
        return squares_SD.astype(np.float32), products_SD.astype(np.float32), constant_S.astype(np.float32)


def _sums(values_TD: NDArray[np.float64], state_T: NDArray[np.int64], states: int) -> NDArray[np.float64]:
    """Sum over the frames of each state, (S, D)."""
    sums_SD = np.zeros((states, values_TD.shape[1]))
    np.add.at(sums_SD, state_T, values_TD)
    return sums_SD
