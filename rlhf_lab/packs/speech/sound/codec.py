"""Small parametric codec: 25 frames per second, four codebooks, decoded by the renderer.

| codebook | codes |
|---|---|
| a | shape of the envelope: index of the nearest k-means centroid |
| b | pitch: 0 is unvoiced, the other codes are equal steps in semitones |
| c | energy × aperiodicity: code = `len(PERIODICITIES)` × level + index; level 0 is silence |
| d | residual of the envelope after codebook a: index of the nearest centroid of the residuals |

The order of the codebooks is coarse to fine: phone, pitch, loudness, detail. `fit` rounds its centroids, so that a
saved and reloaded codec is identical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.analysis import analyse
from rlhf_lab.packs.speech.sound.audio import RATE, write_wav
from rlhf_lab.packs.speech.sound.renderer import render
from rlhf_lab.packs.speech.sound.stream import read_stream
from rlhf_lab.packs.speech.sound.voice_frames import SILENCE_DB, Frames

VERSION = 1
"""Version of the codec. Increase it if the same clips give different codes, or the same codes different frames."""
CODEBOOKS = 4
SIZES = (64, 64, 64, 64)
LOWEST_F0 = 70.0
F0_SEMITONES = 28.35
"""Pitch range in semitones: from 70 Hz to 360 Hz."""
PERIODICITIES = (0.03, 0.12, 0.3, 0.6)
"""Aperiodicity values of voiced frames. The decision boundary between two values is their geometric mean."""
LOUDEST_DB, QUIETEST_DB = -9.0, -51.0
"""Maximum and minimum energy of the levels above silence; 16 levels have a distance of 3 dB."""
ROUNDS = 12
"""Number of iterations of Lloyd's algorithm."""
FILE = "codec.safetensors"


@dataclass(frozen=True, eq=False)
class Codec:
    """Codebooks that convert frames to codes and back. `fit` creates them.

    Attributes:
        envelopes: centroids of codebook a in dB, (codes, BANDS).
        residuals: centroids of codebook d in dB, (codes, BANDS).
        pitches: number of codes of codebook b, including the code for unvoiced.
        levels: number of energy levels of codebook c, including silence.
    """

    envelopes: NDArray[np.float64]
    residuals: NDArray[np.float64]
    pitches: int
    levels: int

    rate = RATE

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Number of codes of each codebook."""
        return (len(self.envelopes), self.pitches, self.levels * len(PERIODICITIES), len(self.residuals))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that determines codes and frames."""
        # little-endian bytes give the same digest on all machines
        digest = sha256(f"codec {VERSION} {self.sizes}".encode())
        for table in (self.envelopes, self.residuals):
            digest.update(np.ascontiguousarray(table, dtype="<f8").tobytes())
        return digest.hexdigest()

    @classmethod
    def fit(cls, clips: Sequence[Frames], sizes: Sequence[int] = SIZES, *, seed: int) -> Codec:
        """Fit the envelope codebooks to the frames of clips, without silent frames.

        Args:
            sizes: number of codes of each codebook. The size of c must be a multiple of `len(PERIODICITIES)`.
        Raises:
            ConfigError: the clips have fewer frames than a codebook has codes.
        """
        envelopes = np.concatenate([clip.envelope_TD[clip.energy_T > SILENCE_DB] for clip in clips])
        if len(envelopes) < max(sizes[0], sizes[3]):
            raise ConfigError(
                f"{len(envelopes)} frames that are not silent are too few to fit codebooks of {sizes[0]} and "
                f"{sizes[3]} codes; provide more clips"
            )
        rng = np.random.default_rng(seed)
        # codebooks b and c are fixed grids and need no fit
        coarse = k_means(envelopes, sizes[0], rng)
        # two-stage vector quantisation: codebook d encodes the error of codebook a
        left = envelopes - coarse[nearest(envelopes, coarse)]
        return cls(coarse, k_means(left, sizes[3], rng), sizes[1], sizes[2] // len(PERIODICITIES))

    def encode(self, samples: NDArray[np.floating]) -> NDArray[np.int64]:
        """Encode samples at `rate` as codes, (T, CODEBOOKS)."""
        return self.quantise(analyse(samples))

    def decode(self, codes_TK: NDArray[np.integer]) -> NDArray[np.float32]:
        """Decode codes to samples at `rate`, −1…1. Raises ValueError for a code outside its codebook."""
        return render(self.frames(codes_TK))

    def quantise(self, frames: Frames) -> NDArray[np.int64]:
        """Return the nearest codes of frames, (T, CODEBOOKS)."""
        semitones_T = 12 * np.log2(np.maximum(frames.f0_T, 1.0) / LOWEST_F0)
        # code 0 is unvoiced, so the steps of the pitch are codes 1 … pitches − 1
        steps_T = np.rint(semitones_T / self._pitch_step)
        pitch_T = np.clip(steps_T, 0, self.pitches - 2).astype(np.int64) + 1
        level_T = np.rint((frames.energy_T - QUIETEST_DB) / self._level_step).astype(np.int64) + 1
        # a frame more than one step below the quietest level is silence; other frames get level 1 or higher
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
        """Return the frames that codes represent. Raises ValueError for a code outside its codebook."""
        codes_TK = np.asarray(codes_TK, dtype=np.int64)
        # the first invalid code is named in the error
        outside = np.argwhere((codes_TK < 0) | (codes_TK >= np.array(self.sizes)))
        if len(outside):
            frame, k = outside[0].tolist()
            raise ValueError(
                f"frame {frame + 1}, codebook {k + 1}: code {codes_TK[frame, k]} is outside 0…{self.sizes[k] - 1}"
            )
        # one column per codebook: (T, K) → K arrays of length T
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
        """Distance between adjacent codes of codebook b in semitones; 0.45 for 64 codes."""
        return F0_SEMITONES / (self.pitches - 1)

    @property
    def _level_step(self) -> float:
        """Distance between adjacent levels in dB."""
        # `levels` includes silence, so levels − 1 energies have levels − 2 intervals
        return (LOUDEST_DB - QUIETEST_DB) / (self.levels - 2)

    def save(self, directory: Path) -> None:
        """Write `codec.safetensors` into a directory."""
        from safetensors.numpy import save_file

        directory.mkdir(parents=True, exist_ok=True)
        tables = {
            "envelopes": self.envelopes,
            "residuals": self.residuals,
            "counts": np.array([VERSION, self.pitches, self.levels], dtype=np.int64),
        }
        save_file(tables, directory / FILE)

    @classmethod
    def load(cls, directory: Path) -> Codec:
        """Read a codec written by `save`. Raises ArtifactError if it is missing, damaged or has another version."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = directory / FILE
        try:
            tables = load_file(path)
            version, pitches, levels = tables["counts"].tolist()
            codec = cls(tables["envelopes"], tables["residuals"], pitches, levels)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ArtifactError(f"{path} is not a codec: {error}; save one with Codec.save") from error
        if version != VERSION:
            raise ArtifactError(f"{path} is a codec of version {version}; expected version {VERSION}. Fit it again")
        return codec


def nearest(points_ND: NDArray[np.float64], centroids_CD: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the centroid with the smallest Euclidean distance, (N,)."""
    # |x − c|² = |x|² − 2xc + |c|²; |x|² is the same for all centroids and can be omitted
    return np.asarray(((centroids_CD**2).sum(1) - 2 * points_ND @ centroids_CD.T).argmin(1), dtype=np.int64)


def k_means(points_ND: NDArray[np.float64], clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return centroids (clusters, D) of Lloyd's algorithm with a k-means++ start.

    They are rounded to two decimals, and ordered by decreasing cluster size.
    """
    centroids = points_ND[[int(rng.integers(len(points_ND)))]]
    distance_N = ((points_ND - centroids[0]) ** 2).sum(1)
    for _ in range(clusters - 1):
        total = distance_N.sum()
        # k-means++: the next centroid is a point drawn in proportion to its squared distance; if all points are
        # centroids already, the draw is uniform
        chances = distance_N / total if total > 0 else None
        centroids = np.vstack([centroids, points_ND[rng.choice(len(points_ND), p=chances)]])
        distance_N = np.minimum(distance_N, ((points_ND - centroids[-1]) ** 2).sum(1))
    for _ in range(ROUNDS):
        members_N = nearest(points_ND, centroids)
        counts = np.bincount(members_N, minlength=clusters)
        sums = np.zeros_like(centroids)
        np.add.at(sums, members_N, points_ND)
        # a centroid without points is unchanged
        centroids = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centroids)
    # frequent shapes get small codes
    order = np.argsort(-np.bincount(nearest(points_ND, centroids), minlength=clusters), kind="stable")
    return np.asarray(np.round(centroids[order], 2))


CACHED_CLIPS = 1024
"""Number of decoded clips that are kept. A clip of three seconds has 192 kB of samples."""


class StreamRenderer:
    """Decoder of streams with a least-recently-used cache of clips."""

    def __init__(self, codec: Codec, cached_clips: int = CACHED_CLIPS):
        self.codec = codec
        self.sizes: tuple[int, ...] = codec.sizes
        self._cached = lru_cache(maxsize=cached_clips)(self._decode)

    @property
    def fingerprint(self) -> str:
        return self.codec.fingerprint

    def require_model(self, config: Any) -> None:
        """Raise ConfigError if the policy uses a different codec than the data."""
        codec = getattr(config, "codec", "")
        if codec and codec != self.fingerprint:
            raise ConfigError(
                "the policy uses a different codec than the data (data.codebooks differs, or data=speech and "
                "data=espeak are mixed); use its training data, or train a policy on this data: +recipe=tts_sft"
            )

    def write(self, path: Path, audio: Audio) -> None:
        write_wav(path, audio)

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """Decode the audio of each response. Without a valid stream of one or more frames, it has no samples."""
        return [self._cached(response) for response in responses]

    def _decode(self, response: str) -> Audio:
        try:
            samples = self.codec.decode(read_stream(response, len(self.sizes)))
        # an invalid stream is an expected result of a policy, not an error
        except ValueError:
            samples = np.zeros(0, dtype=np.float32)
        # all callers share the cached array, so nobody may modify it
        samples.flags.writeable = False
        return Audio(samples, self.codec.rate)
