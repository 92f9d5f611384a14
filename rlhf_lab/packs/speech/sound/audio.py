"""Audio files with one channel: reading into float32 samples, writing as 16-bit PCM.

WAV files are read with SciPy, other formats with librosa (extra `speech`). A file is rejected if measurements on it
would be silently wrong. The error message says how to fix the file.
"""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import write_bytes
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.frame_grid import without_offset

RATE = 16000
"""Sampling rate of all speech in rlhf_lab, in Hz."""
PCM_STEPS = 32768
"""Number of steps of 16-bit PCM between 0 and full scale."""
Library = Literal["numpy", "librosa"]
"""Library that measures audio: `numpy` stands for NumPy and SciPy, `librosa` also reads other formats than WAV."""
FORMATS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64")
"""Endings of the audio files in a directory. A file that is named itself may have any ending that librosa reads."""
FULL_SCALE = 1 - 1 / PCM_STEPS
"""Maximum sample of 16-bit PCM. Samples beyond it are clipped to this value."""
SILENCE_DBFS = -60.0
"""Minimum level of the loudest 25 ms of a clip in dB relative to a square wave at full scale; below it is silence."""
UNKNOWN_LENGTH = 0x7FFFF000
"""Minimum length in the header of a file that was written to a pipe: the writer could not return to its start."""
CLIPPED_FRACTION = 0.001
"""Maximum fraction of samples in runs at full scale; clipping adds harmonics to the signal."""


def read_audio(
    path: Path | str, rate: int = RATE, *, resample: bool = False, any_level: bool = False, library: Library = "numpy"
) -> Audio:
    """Read an audio file with one channel. WAV files may have 8- to 32-bit PCM or float.

    Args:
        rate: required sampling rate in Hz.
        resample: True to convert other rates to `rate`; False to reject them.
        any_level: True to accept silence and clipping too.
        library: `librosa` also reads other formats than WAV, and resamples with soxr instead of a polyphase filter.

    Raises:
        DataError: the file is missing, damaged or empty, or its format cannot be read. Also raised for several
            channels, another rate, NaN or infinite samples, silence and clipping.
        MissingDependency: `library` is not installed.
    """
    path = Path(path)
    found_rate, stored = _read_file(path, rate, library)
    if stored.ndim > 1:
        raise DataError(f"{path} has {stored.shape[1]} channels; expected one. Mix them with {_conversion(path, rate)}")
    if not len(stored):
        raise DataError(f"{path} has no samples; record or generate it again, or leave it out")
    samples_N = _to_float(stored)
    if not np.isfinite(samples_N).all():
        count = int((~np.isfinite(samples_N)).sum())
        raise DataError(f"{path} has {count} samples that are NaN or infinite; generate it again, or leave it out")
    # levels are checked before resampling, because the filter moves clipped samples away from full scale
    problem = None if any_level else level_problem(Audio(samples_N, found_rate))
    if problem:
        raise DataError(f"{path} {problem}")
    if found_rate != rate:
        if not resample:
            raise DataError(
                f"{path} has {found_rate} samples per second; expected {rate}. Set resample=true, or convert the file: "
                f"{_conversion(path, rate)}"
            )
        samples_N = change_rate(samples_N, found_rate, rate, library)
    return Audio(samples_N, rate)


def write_wav(path: Path | str, audio: Audio) -> None:
    """Write 16-bit PCM atomically. Raises DataError as `wav_bytes` does."""
    write_bytes(Path(path), wav_bytes(audio))


def wav_bytes(audio: Audio) -> bytes:
    """Return the content of a WAV file, 16-bit PCM. Raises DataError for samples that are NaN or outside −1…1."""
    from scipy.io import wavfile

    peak = float(np.abs(audio.samples_N).max(initial=0.0))
    if not peak <= 1:  # written this way because a comparison with NaN is False
        raise DataError(f"the audio has samples up to {peak:.3g}; expected −1…1. Divide the samples by their peak")
    steps_N = np.rint(audio.samples_N * PCM_STEPS).clip(-PCM_STEPS, PCM_STEPS - 1)
    content = io.BytesIO()
    wavfile.write(content, audio.rate, steps_N.astype(np.int16))
    return content.getvalue()


def level_problem(audio: Audio) -> str | None:
    """Describe why a clip is silent or clipped, and how to fix it; None if it is neither."""
    loudest = loudest_dbfs(audio)
    if loudest < SILENCE_DBFS:
        return (
            f"is silence: the level of its loudest 25 ms is {loudest:.0f} dBFS, and the minimum is "
            f"{SILENCE_DBFS:.0f}; record or generate it again, or leave it out"
        )
    fraction = clipped_fraction(audio)
    if fraction <= CLIPPED_FRACTION:
        return None
    peak = np.abs(audio.samples_N).max()
    if peak > 1:  # possible in a file of floats
        return f"has samples up to {peak:.3g}; expected −1…1. Divide the samples by their peak"
    return (
        f"is clipped: {fraction:.2%} of its samples are in runs at full scale, and the limit is "
        f"{CLIPPED_FRACTION:.2%}; "
        "record or generate it at a lower level (reducing the volume now does not restore the clipped samples)"
    )


def loudest_dbfs(audio: Audio) -> float:
    """Return the root mean square of the loudest 25 ms in dB of full scale, without offset; −inf for silence."""
    size = max(1, round(0.025 * audio.rate))
    power_N = without_offset(audio.samples_N).astype(np.float64) ** 2
    # padded with zeros to a multiple of the block size
    padded_N = np.pad(power_N, (0, -len(power_N) % size))
    loudest = padded_N.reshape(-1, size).mean(axis=1).max(initial=0.0)
    return 10 * math.log10(loudest) if loudest > 0 else -math.inf


def clipped_fraction(audio: Audio) -> float:
    """Return the fraction of samples at full scale with a neighbour at full scale.

    Single samples do not count, because a peak that just reaches full scale is not clipped.
    """
    if not len(audio.samples_N):
        return 0.0
    is_clipped_N = np.zeros(len(audio.samples_N), bool)
    for sign in (1, -1):
        at_limit_N = sign * audio.samples_N >= FULL_SCALE
        # marks both samples of each pair of adjacent samples at full scale
        is_neighbour_N = at_limit_N[1:] & at_limit_N[:-1]
        is_clipped_N[1:] |= is_neighbour_N
        is_clipped_N[:-1] |= is_neighbour_N
    return float(is_clipped_N.mean())


def _read_file(path: Path, rate: int, library: Library) -> tuple[int, NDArray[Any]]:
    """Return the rate and the samples in their stored type."""
    from scipy.io import wavfile

    if not path.is_file():
        raise DataError(f"{path} is not a file; name a WAV file, or a directory of WAV files")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; copy or generate it again, or leave it out")
    # SciPy reads WAV files with library=librosa too, because it notices files that are cut off
    if library == "librosa" and path.suffix.lower() != ".wav":
        return _read_with_librosa(path)
    content = path.read_bytes()
    is_piped = content[:4] == b"RIFF" and int.from_bytes(content[4:8], "little") >= UNKNOWN_LENGTH
    with warnings.catch_warnings():
        # for a truncated file SciPy only warns and returns a shorter clip, so the warning becomes an error
        action: Literal["ignore", "error"] = "ignore" if is_piped else "error"
        warnings.filterwarnings(action, message="Reached EOF", category=wavfile.WavFileWarning)
        warnings.filterwarnings("ignore", message="Chunk", category=wavfile.WavFileWarning)
        try:
            # from a file SciPy would allocate the length in the header
            return wavfile.read(io.BytesIO(content) if is_piped else path)
        except wavfile.WavFileWarning as warning:
            raise DataError(
                f"{path} is cut off ({str(warning).rstrip('.')}); copy or generate it again, or leave it out"
            ) from None
        except PermissionError:
            raise
        # for damaged files SciPy's parser raises many types: struct.error, UnboundLocalError, ZeroDivisionError
        except Exception as error:
            if library == "librosa":  # it also reads WAV files in μ-law, ADPCM and other encodings
                return _read_with_librosa(path)
            raise DataError(
                f"{path} is damaged or not a WAV file ({error}). If it has another audio format, read it with "
                f"library=librosa, or convert it: {_conversion(path, rate)}; otherwise copy or generate it again"
            ) from error


def _conversion(path: Path, rate: int) -> str:
    return f"`ffmpeg -i {path} -ac 1 -ar {rate} {path.stem}.{rate}.wav`"


def _to_float(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Convert the stored samples of a WAV file to float32 in −1…1."""
    if stored.dtype == np.uint8:  # 8-bit PCM is unsigned
        return ((stored - 128.0) / 128).astype(np.float32)
    if np.issubdtype(stored.dtype, np.integer):  # SciPy returns 24-bit samples in the upper bits of 32
        return (stored / -float(np.iinfo(stored.dtype).min)).astype(np.float32)
    return stored.astype(np.float32)


def change_rate(
    samples_N: NDArray[np.float32], rate: int, target_rate: int, library: Library = "numpy"
) -> NDArray[np.float32]:
    """Resample with a polyphase Kaiser filter, or with that of soxr (`library=librosa`).

    Overshoot at full-scale edges is clipped to −1…1.
    """
    if library == "librosa":
        resampled_N = import_librosa().resample(samples_N, orig_sr=rate, target_sr=target_rate)
    else:
        from scipy.signal import resample_poly

        divisor = math.gcd(rate, target_rate)
        resampled_N = resample_poly(samples_N.astype(np.float64), target_rate // divisor, rate // divisor)
    return cast("NDArray[np.float32]", resampled_N.clip(-1, 1).astype(np.float32))


def import_librosa() -> Any:
    """Import librosa. Raises MissingDependency if the extra `speech` is not installed."""
    try:
        import librosa
    except ModuleNotFoundError as error:
        raise MissingDependency(*OPTIONAL["librosa"]) from error
    return librosa


def _read_with_librosa(path: Path) -> tuple[int, NDArray[np.float32]]:
    """Return the rate and the samples of a file, (N,), or (N, C) with several channels."""
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
