"""A small parametric codec: 25 frames a second, four codebooks, decoded by the renderer.

| codebook | its codes |
|---|---|
| a | shape of the envelope: the nearest of the centroids that k-means found |
| b | pitch: 0 is unvoiced, the others are equal steps in semitones |
| c | energy × aperiodicity: code = `len(PERIODICITIES)` × level + index; level 0 is silence |
| d | what codebook a left of the envelope: the nearest of the centroids of the residuals |

Coarsest first in what is heard: which sound, how high, how loud, how exactly. The numbers that `fit` finds are
rounded, so that a codec that was saved and read again is the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.audio import RATE
from rlhf_lab.packs.speech.sound.renderer import render
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, SILENCE_DB, Frames

VERSION = 1
"""Increased whenever the same clips give other codes, or the same codes other frames."""
CODEBOOKS = 4
SIZES = (64, 64, 64, 64)
LARGEST = 64
LOWEST_F0 = 70.0
F0_SEMITONES = 28.35
"""From the lowest pitch to the highest: 70 Hz to 360 Hz."""
PERIODICITIES = (0.03, 0.12, 0.3, 0.6)
"""Aperiodicities of voiced frames; between two of them the boundary is their geometric mean."""
LOUDEST_DB, QUIETEST_DB = -9.0, -51.0
"""Of the levels above silence; 3 dB apart with 16 of them."""
ROUNDS = 12
FILE = "codec.safetensors"


@dataclass(frozen=True, eq=False)
class Codec:
    """Codebooks that turn frames into codes and back. `fit` makes one.

    Attributes:
        envelopes: centroids of codebook a, (codes, BANDS), dB.
        residuals: centroids of codebook d, (codes, BANDS), dB.
        pitches: codes of codebook b, one of them for unvoiced.
        levels: energies of codebook c, one of them silence.
    """

    envelopes: NDArray[np.float64]
    residuals: NDArray[np.float64]
    pitches: int
    levels: int

    rate = RATE
    frames_per_second = FRAMES_PER_SECOND

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Codes of each codebook."""
        return (len(self.envelopes), self.pitches, self.levels * len(PERIODICITIES), len(self.residuals))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides codes and frames (hex)."""
        digest = sha256(f"codec {VERSION} {self.sizes}".encode())
        for table in (self.envelopes, self.residuals):
            digest.update(np.ascontiguousarray(table, dtype="<f8").tobytes())
        return digest.hexdigest()

    @classmethod
    def fit(cls, clips: Sequence[Frames], sizes: Sequence[int] = SIZES, *, seed: int) -> Codec:
        """Find the envelopes of clips, silent frames aside.

        Args:
            sizes: codes of each codebook. That of c is a multiple of `len(PERIODICITIES)`.
        Raises:
            ConfigError: a size is out of range, or the clips have fewer frames than a codebook has codes.
        """
        _check_sizes(sizes)
        envelopes = np.concatenate([clip.envelope_TD[clip.energy_T > SILENCE_DB] for clip in clips])
        if len(envelopes) < max(sizes[0], sizes[3]):
            raise ConfigError(
                f"{len(envelopes)} frames that are not silent cannot fit codebooks of {sizes[0]} and {sizes[3]} "
                "codes; give more clips"
            )
        rng = np.random.default_rng(seed)
        coarse = k_means(envelopes, sizes[0], rng)
        left = envelopes - coarse[nearest(envelopes, coarse)]
        return cls(coarse, k_means(left, sizes[3], rng), sizes[1], sizes[2] // len(PERIODICITIES))

    def encode(self, samples: NDArray[np.floating]) -> NDArray[np.int64]:
        """The codes of samples at `rate`, (T, CODEBOOKS)."""
        return self.quantise(analyse(samples))

    def decode(self, codes_TK: NDArray[np.integer]) -> NDArray[np.float32]:
        """Samples at `rate`, −1…1. Raises ValueError for a code that its codebook does not have."""
        return render(self.frames(codes_TK))

    def quantise(self, frames: Frames) -> NDArray[np.int64]:
        """The nearest codes of frames, (T, CODEBOOKS)."""
        semitones_T = 12 * np.log2(np.maximum(frames.f0_T, 1.0) / LOWEST_F0)
        pitch_T = np.clip(np.rint(semitones_T / self._pitch_step), 0, self.pitches - 2).astype(np.int64) + 1
        level_T = np.rint((frames.energy_T - QUIETEST_DB) / self._level_step).astype(np.int64) + 1
        silent_T = frames.energy_T < QUIETEST_DB - self._level_step
        boundaries = np.sqrt(np.array(PERIODICITIES[1:]) * np.array(PERIODICITIES[:-1]))
        periodicity_T = np.where(frames.voiced_T, np.searchsorted(boundaries, frames.aperiodicity_T), 0)
        level_T = np.where(silent_T, 0, np.clip(level_T, 1, self.levels - 1))
        coarse_T = nearest(frames.envelope_TD, self.envelopes)
        return np.stack(
            [
                coarse_T,
                np.where(frames.voiced_T, pitch_T, 0),
                level_T * len(PERIODICITIES) + periodicity_T,
                nearest(frames.envelope_TD - self.envelopes[coarse_T], self.residuals),
            ],
            axis=1,
        )

    def frames(self, codes_TK: NDArray[np.integer]) -> Frames:
        """What codes stand for. Raises ValueError for a code that its codebook does not have."""
        codes_TK = np.asarray(codes_TK, dtype=np.int64)
        outside = np.argwhere((codes_TK < 0) | (codes_TK >= np.array(self.sizes)))
        if len(outside):
            frame, k = outside[0].tolist()
            raise ValueError(
                f"frame {frame + 1}, codebook {k + 1}: code {codes_TK[frame, k]} is outside 0…{self.sizes[k] - 1}"
            )
        coarse_T, pitch_T, power_T, fine_T = codes_TK.T
        level_T, periodicity_T = np.divmod(power_T, len(PERIODICITIES))
        voiced_T = pitch_T > 0
        f0_T = LOWEST_F0 * 2 ** ((pitch_T - 1) * self._pitch_step / 12)
        energy_T = QUIETEST_DB + (level_T - 1) * self._level_step
        return Frames(
            f0_T=np.where(voiced_T, f0_T, 0.0),
            envelope_TD=self.envelopes[coarse_T] + self.residuals[fine_T],
            energy_T=np.where(level_T > 0, energy_T, SILENCE_DB),
            aperiodicity_T=np.where(voiced_T, np.array(PERIODICITIES)[periodicity_T], 1.0),
        )

    @property
    def _pitch_step(self) -> float:
        """Semitones from one code of codebook b to the next: .45 with 64 of them."""
        return F0_SEMITONES / (self.pitches - 1)

    @property
    def _level_step(self) -> float:
        """dB from one level to the next."""
        return (LOUDEST_DB - QUIETEST_DB) / (self.levels - 2)

    def save(self, folder: Path) -> None:
        """Write `codec.safetensors` into a folder."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tables = {
            "envelopes": self.envelopes,
            "residuals": self.residuals,
            "counts": np.array([VERSION, self.pitches, self.levels], dtype=np.int64),
        }
        save_file(tables, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """Read what `save` wrote. Raises ArtifactError where there is none, or one of another version."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = folder / FILE
        try:
            tables = load_file(path)
            version, pitches, levels = tables["counts"].tolist()
            codec = cls(tables["envelopes"], tables["residuals"], pitches, levels)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ArtifactError(f"{path} is no codec: {error}; save one with Codec.save") from error
        if version != VERSION:
            raise ArtifactError(f"{path} is a codec of version {version}, and this is version {VERSION}; fit it anew")
        return codec


def _check_sizes(sizes: Sequence[int]) -> None:
    """Raises ConfigError unless there can be codebooks of these sizes."""
    steps = len(PERIODICITIES)
    if len(sizes) != CODEBOOKS or not all(8 <= size <= LARGEST for size in sizes) or sizes[2] % steps or sizes[2] < 16:
        raise ConfigError(
            f"codec sizes {tuple(sizes)}; write {CODEBOOKS} numbers, each 8…{LARGEST}, the third a multiple of "
            f"{steps} from 16 on"
        )


def nearest(points_ND: NDArray[np.float64], centroids_CD: NDArray[np.float64]) -> NDArray[np.int64]:
    """The index of the centroid with the smallest Euclidean distance, (N,)."""
    # |x|² is the same for all centroids and left out
    return np.asarray(((centroids_CD**2).sum(1) - 2 * points_ND @ centroids_CD.T).argmin(1), dtype=np.int64)


def k_means(points_ND: NDArray[np.float64], clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Centroids (clusters, D) by Lloyd's algorithm from a k-means++ start, rounded to hundredths, ordered by size."""
    centroids = points_ND[[int(rng.integers(len(points_ND)))]]
    distance_N = ((points_ND - centroids[0]) ** 2).sum(1)
    for _ in range(clusters - 1):
        total = distance_N.sum()
        chances = distance_N / total if total > 0 else None
        centroids = np.vstack([centroids, points_ND[rng.choice(len(points_ND), p=chances)]])
        distance_N = np.minimum(distance_N, ((points_ND - centroids[-1]) ** 2).sum(1))
    for _ in range(ROUNDS):
        members_N = nearest(points_ND, centroids)
        counts = np.bincount(members_N, minlength=clusters)
        sums = np.zeros_like(centroids)
        np.add.at(sums, members_N, points_ND)
        # a centroid without points stays where it is
        centroids = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centroids)
    order = np.argsort(-np.bincount(nearest(points_ND, centroids), minlength=clusters), kind="stable")
    return np.asarray(np.round(centroids[order], 2))
