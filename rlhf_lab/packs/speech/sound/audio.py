"""Audio files: WAV with one channel, read into float32 samples and written as 16-bit PCM.

A file is refused, with what to do about it, when what is measured on it would be wrong without notice: another sampling
rate (every frequency would be off), several channels, silence, samples cut off at full scale, a file that ends early.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import write_bytes
from rlhf_lab.core.media import Audio

RATE = 16000
"""Samples a second of the lab's speech."""
PCM_STEPS = 32768
"""Steps of 16-bit PCM between 0 and full scale."""
FULL_SCALE = 1 - 1 / PCM_STEPS
"""The largest sample that 16-bit PCM has; what a microphone or a mix exceeded lies there."""


@dataclass(frozen=True)
class Limits:
    """What audio must be for its features to mean something.

    Args:
        silence_dbfs: a clip whose loudest 25 ms are below this level is silence; dB, 0 is a square wave at full scale.
        clipped_share: largest share of samples in runs at full scale, whose distortion adds harmonics.
    """

    silence_dbfs: float = -60.0
    clipped_share: float = 0.001


USABLE = Limits()


def read_wav(path: Path | str, rate: int = RATE, *, resample: bool = False, limits: Limits | None = USABLE) -> Audio:
    """Read a WAV file of one channel: 8- to 32-bit PCM or float.

    Args:
        rate: samples a second that the audio must have.
        resample: convert another rate to `rate`; otherwise it is an error.
        limits: levels that the audio must keep; None takes silence and clipping too.

    Raises:
        DataError: the file is missing, no WAV file, damaged or empty, or has several channels, another rate, values
            that are no numbers, or a level outside `limits`.
    """
    path = Path(path)
    found_rate, stored = _read_file(path, rate)
    if stored.ndim > 1:
        raise DataError(
            f"{path} has {stored.shape[1]} channels; expected one. {_conversion(path, rate)} mixes them into one"
        )
    if not len(stored):
        raise DataError(f"{path} has no samples; record or generate it again, or leave it out")
    samples_N = _to_float(stored)
    if not np.isfinite(samples_N).all():
        count = int((~np.isfinite(samples_N)).sum())
        raise DataError(f"{path} has {count} samples that are NaN or infinite; generate it again, or leave it out")
    if found_rate != rate:
        if not resample:
            raise DataError(
                f"{path} has {found_rate} samples a second; expected {rate}. Ask for resampling (resample=true), or "
                f"convert it: {_conversion(path, rate)}"
            )
        # checked before, because a filter moves samples away from full scale
        _check_levels(Audio(samples_N, found_rate), str(path), limits)
        samples_N = _resample(samples_N, found_rate, rate)
    audio = Audio(samples_N, rate)
    _check_levels(audio, str(path), limits)
    return audio


def write_wav(path: Path | str, audio: Audio) -> None:
    """Write 16-bit PCM: the whole file, or nothing. Raises DataError as `wav_bytes` does."""
    write_bytes(Path(path), wav_bytes(audio))


def wav_bytes(audio: Audio) -> bytes:
    """The content of a WAV file, 16-bit PCM. Raises DataError for samples beyond −1…1, which PCM cannot say, or NaN."""
    from scipy.io import wavfile

    peak = float(np.abs(audio.samples_N).max(initial=0.0))
    if not peak <= 1:
        raise DataError(f"the audio has samples up to {peak:.3g}; expected −1…1: divide it by its peak")
    steps_N = np.rint(audio.samples_N * PCM_STEPS).clip(-PCM_STEPS, PCM_STEPS - 1)
    content = io.BytesIO()
    wavfile.write(content, audio.rate, steps_N.astype(np.int16))
    return content.getvalue()


def level_problem(audio: Audio, limits: Limits = USABLE) -> str | None:
    """Why the levels of some audio are outside the limits, with what to do about it; None if they are not."""
    loudest = loudest_dbfs(audio)
    if loudest < limits.silence_dbfs:
        return (
            f"is silence: its loudest 25 ms are at {loudest:.0f} dBFS, and sound has at least "
            f"{limits.silence_dbfs:.0f}; record or generate it again, or leave it out"
        )
    share = clipped_share(audio)
    if share > limits.clipped_share:
        return (
            f"is clipped: {share:.2%} of its samples lie in runs at full scale, and at most {limits.clipped_share:.2%} "
            "may; record or generate it at a lower level (making it quieter now does not bring back what was cut off)"
        )
    return None


def loudest_dbfs(audio: Audio) -> float:
    """Root mean square of the loudest 25 ms, dB of full scale; −inf for zeros and for audio without samples."""
    size = max(1, round(0.025 * audio.rate))
    power_N = audio.samples_N.astype(np.float64) ** 2
    padded_N = np.pad(power_N, (0, -len(power_N) % size))
    loudest = padded_N.reshape(-1, size).mean(axis=1).max(initial=0.0)
    return 10 * math.log10(loudest) if loudest > 0 else -math.inf


def clipped_share(audio: Audio) -> float:
    """Share of samples at full scale beside another one there: a peak that only reaches it is one sample."""
    if not len(audio.samples_N):
        return 0.0
    is_clipped_N = np.zeros(len(audio.samples_N), bool)
    for sign in (1, -1):
        at_limit_N = sign * audio.samples_N >= FULL_SCALE
        is_beside_N = at_limit_N[1:] & at_limit_N[:-1]
        is_clipped_N[1:] |= is_beside_N
        is_clipped_N[:-1] |= is_beside_N
    return float(is_clipped_N.mean())


def _check_levels(audio: Audio, name: str, limits: Limits | None) -> None:
    problem = level_problem(audio, limits) if limits else None
    if problem:
        raise DataError(f"{name} {problem}")


def _read_file(path: Path, rate: int) -> tuple[int, NDArray[Any]]:
    """Rate and samples as they are stored."""
    from scipy.io import wavfile

    if not path.is_file():
        raise DataError(f"{path} is no file; name a WAV file, or a folder of them")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; copy or generate it again, or leave it out")
    with warnings.catch_warnings():
        # a file that ends early is only warned about, and would be read as a shorter clip
        warnings.filterwarnings("error", message="Reached EOF", category=wavfile.WavFileWarning)
        warnings.filterwarnings("ignore", message="Chunk", category=wavfile.WavFileWarning)
        try:
            return wavfile.read(path)
        except wavfile.WavFileWarning as warning:
            raise DataError(
                f"{path} is cut off ({str(warning).rstrip('.')}); copy or generate it again, or leave it out"
            ) from None
        except PermissionError:
            raise
        # the parser raises whatever it runs into: struct.error, UnboundLocalError, a division by a block size of 0
        except Exception as error:
            raise DataError(
                f"{path} is damaged or no WAV file ({error}). If it is another kind of audio, convert it: "
                f"{_conversion(path, rate)}; otherwise copy or generate it again"
            ) from error


def _conversion(path: Path, rate: int) -> str:
    return f"`ffmpeg -i {path} -ac 1 -ar {rate} {path.stem}.{rate}.wav`"


def _to_float(stored: NDArray[Any]) -> NDArray[np.float32]:
    """float32, −1…1, of what a WAV file stores."""
    if stored.dtype == np.uint8:  # PCM of 8 bits is unsigned
        return ((stored - 128.0) / 128).astype(np.float32)
    if np.issubdtype(stored.dtype, np.integer):  # 24 bits come shifted to the top of 32
        return (stored / -float(np.iinfo(stored.dtype).min)).astype(np.float32)
    return stored.astype(np.float32)


def _resample(samples_N: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """Polyphase resampling with a Kaiser filter. Its overshoot at a full-scale edge is cut back to −1…1."""
    from scipy.signal import resample_poly

    divisor = math.gcd(rate, wanted)
    resampled_N = resample_poly(samples_N.astype(np.float64), wanted // divisor, rate // divisor)
    return resampled_N.clip(-1, 1).astype(np.float32)
