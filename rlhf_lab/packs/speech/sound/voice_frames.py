"""Parameters of a voice per frame, shared by the analysis, the codec and the renderer.

A frame contains pitch, the shape of the spectrum, energy and breathiness. It has no phase; the renderer generates one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAMES_PER_SECOND = 25
BANDS = 20
LOWEST_HZ, HIGHEST_HZ = 100.0, 7_400.0
"""Centres of the lowest and of the highest band in Hz."""
SILENCE_DB = -70.0
"""Energy of a silent frame in dB, the minimum of all frames."""


def mel(hertz: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Convert frequencies in Hz to the mel scale of O'Shaughnessy (1987)."""
    return 2595 * np.log10(1 + np.asarray(hertz, dtype=np.float64) / 700)


def band_centres() -> NDArray[np.float64]:
    """Return the centres of the bands in Hz, (BANDS,), with equal spacing in mel."""
    steps = np.linspace(mel(LOWEST_HZ), mel(HIGHEST_HZ), BANDS)
    return 700 * (10 ** (steps / 2595) - 1)


@dataclass(frozen=True)
class Frames:
    """T frames of a voice at `FRAMES_PER_SECOND`; frame t is centred at (t + ½) / `FRAMES_PER_SECOND` seconds.

    Attributes:
        f0_T: fundamental frequency in Hz; 0 for unvoiced frames.
        envelope_TD: shape of the spectrum in dB at the centres of the D = `BANDS` bands; the mean over bands is 0.
        energy_T: root mean square of the samples in dB of full scale; `SILENCE_DB` is silence.
        aperiodicity_T: fraction of noise in the power of a voiced frame, 0…1; 1 for unvoiced frames.
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

    def take(self, positions: NDArray[np.int64] | slice) -> Frames:
        """Return the frames at these positions."""
        tracks = (self.f0_T, self.envelope_TD, self.energy_T, self.aperiodicity_T)
        return Frames(*(track[positions] for track in tracks))
