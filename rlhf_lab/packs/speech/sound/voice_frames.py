"""What a speaker's voice does, frame by frame: the common form of the analysis, the codec and the renderer.

A frame says how high the voice is, what shape its spectrum has, how loud and how breathy it is. Phase is left out: the
renderer makes one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAMES_PER_SECOND = 25
BANDS = 20
LOWEST_HZ, HIGHEST_HZ = 100.0, 7_400.0
"""Centres of the lowest and of the highest band."""
SILENCE_DB = -70.0
"""Energy of a silent frame; nothing is quieter."""


def mel(hertz: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Frequencies on the mel scale of O'Shaughnessy (1987)."""
    return 2595 * np.log10(1 + np.asarray(hertz, dtype=np.float64) / 700)


def band_centres() -> NDArray[np.float64]:
    """Centres of the bands in Hz, (BANDS,): equal steps in mel."""
    steps = np.linspace(mel(LOWEST_HZ), mel(HIGHEST_HZ), BANDS)
    return 700 * (10 ** (steps / 2595) - 1)


@dataclass(frozen=True)
class Frames:
    """T frames of a voice, `FRAMES_PER_SECOND` each second; frame t is centred at (t + ½) / `FRAMES_PER_SECOND`.

    Attributes:
        f0_T: fundamental frequency in Hz; 0 where there is no voice.
        envelope_TD: shape of the spectrum, dB at the centre of each of D = `BANDS` bands; the mean over bands is 0.
        energy_T: root mean square of the samples, dB against full scale; `SILENCE_DB` is silence.
        aperiodicity_T: share of noise in the power of a voiced frame, 0…1; 1 where there is no voice.
    """

    f0_T: NDArray[np.float64]
    envelope_TD: NDArray[np.float64]
    energy_T: NDArray[np.float64]
    aperiodicity_T: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.f0_T)

    @property
    def voiced_T(self) -> NDArray[np.bool_]:
        return self.f0_T > 0
