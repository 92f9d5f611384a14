"""WAV files: what is written is read back, and what would be measured wrongly is refused with the fix."""

import io
import re

import numpy as np
import pytest
from scipy.io import wavfile
from synthetic_audio import RATE, audio, silence, tone

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import (
    clipped_fraction,
    level_problem,
    loudest_dbfs,
    read_audio,
    wav_bytes,
    write_wav,
)

SOUND = audio(tone(150, 0.2))


def test_written_audio_is_read_back(tmp_path):
    """To half a step of 16 bits."""
    write_wav(tmp_path / "a.wav", SOUND)
    read = read_audio(tmp_path / "a.wav")
    assert read.rate == RATE and read.samples_N.dtype == np.float32
    assert np.abs(read.samples_N - SOUND.samples_N).max() <= 0.5 / 32768
    assert wav_bytes(read) == (tmp_path / "a.wav").read_bytes()


def test_full_scale_has_both_signs():
    samples_N = np.array([1, -1, 0, 0.5], np.float32)
    rate, stored = wavfile.read(io.BytesIO(wav_bytes(Audio(samples_N, RATE))))
    assert rate == RATE and stored.tolist() == [32767, -32768, 0, 16384]


@pytest.mark.parametrize("samples", [[0.0, 1.2], [0.0, np.nan]])
def test_samples_that_pcm_cannot_say_are_not_written(tmp_path, samples):
    with pytest.raises(DataError, match=r"samples up to .*; expected −1…1"):
        write_wav(tmp_path / "a.wav", Audio(np.array(samples, np.float32), RATE))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "stored",
    [
        (SOUND.samples_N * 127 + 128).astype(np.uint8),
        (SOUND.samples_N * 32767).astype(np.int16),
        (SOUND.samples_N.astype(float) * (2**31 - 1)).astype(np.int32),
        SOUND.samples_N,
        SOUND.samples_N.astype(np.float64),
    ],
    ids=["8 bits", "16 bits", "32 bits", "float", "double"],
)
def test_every_form_of_sample(tmp_path, stored):
    wavfile.write(tmp_path / "a.wav", RATE, stored)
    assert np.abs(read_audio(tmp_path / "a.wav").samples_N - SOUND.samples_N).max() < 0.01


def refused(path, **options):
    with pytest.raises(DataError) as error:
        read_audio(path, **options)
    assert str(error.value).startswith(str(path))
    return str(error.value)


def test_another_rate_is_refused_or_resampled(tmp_path):
    path = tmp_path / "a.wav"
    time_N = np.arange(22050) / 22050
    write_wav(path, Audio((0.5 * np.sin(2 * np.pi * 440 * time_N)).astype(np.float32), 22050))
    message = refused(path)
    assert "has 22050 samples per second; expected 16000" in message and "resample=true" in message
    assert "-ar 16000" in message
    read = read_audio(path, resample=True)
    assert (read.rate, len(read.samples_N)) == (16000, 16000)
    # away from the ends it is the same tone: the largest bin of a second is its frequency
    assert np.abs(np.fft.rfft(read.samples_N)).argmax() == 440
    assert read.samples_N[1000:-1000].std() == pytest.approx(0.5 / np.sqrt(2), rel=0.01)


def test_files_that_hold_no_single_channel(tmp_path):
    wavfile.write(tmp_path / "two.wav", RATE, np.zeros((100, 2), np.int16))
    assert re.search(r"has 2 channels; expected one\. Mix them with `ffmpeg .* -ac 1 ", refused(tmp_path / "two.wav"))
    assert "is not a file; name a WAV file" in refused(tmp_path / "a.wav")
    assert "is not a file" in refused(tmp_path)
    (tmp_path / "a.wav").write_bytes(b"")
    assert "is empty" in refused(tmp_path / "a.wav")
    wavfile.write(tmp_path / "a.wav", RATE, np.zeros(0, np.int16))
    assert "has no samples" in refused(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(wav_bytes(SOUND)[:3000])
    assert "is cut off" in refused(tmp_path / "a.wav")


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFF000], ids=["ffmpeg", "sox"])
def test_a_file_from_a_pipe_has_no_length_in_its_header(tmp_path, length):
    content = bytearray(wav_bytes(SOUND))
    (content[4:8], content[40:44]) = (min(length + 36, 2**32 - 1).to_bytes(4, "little"), length.to_bytes(4, "little"))
    (tmp_path / "a.wav").write_bytes(content)
    assert wav_bytes(read_audio(tmp_path / "a.wav")) == wav_bytes(SOUND)


@pytest.mark.parametrize("content", [b"ID3\x04" + bytes(100), b"fLaC" + bytes(100), b"RIFF" + bytes(60), b"RIFF"])
def test_another_kind_of_file(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    message = refused(path)
    assert "is damaged or not a WAV file" in message and "ffmpeg" in message


def test_a_damaged_header_never_gives_another_error(tmp_path):
    """Each byte of the header in turn set to values that lead the parser astray: audio or a DataError, no other."""
    content = wav_bytes(SOUND)
    path = tmp_path / "a.wav"
    read = 0
    for position in range(44):
        for value in (0, 1, 255):
            path.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
            try:
                read_audio(path)
                read += 1
            except DataError as error:
                assert str(path) in str(error)
    assert read > 20  # bytes that had this value already, and fields that no reader needs


def test_silence(tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, Audio(silence(0.5).astype(np.float32), RATE))
    assert "is silence: the level of its loudest 25 ms is -inf dBFS" in refused(path)
    # a square wave at full scale has 0 dBFS
    assert loudest_dbfs(Audio(np.tile([1, -1], 400).astype(np.float32), RATE)) == pytest.approx(0)
    assert loudest_dbfs(Audio(np.zeros(0, np.float32), RATE)) == -np.inf
    # 66 dB below full scale
    write_wav(path, Audio(SOUND.samples_N * np.float32(0.0005 / loud(SOUND)), RATE))
    assert "is silence: the level of its loudest 25 ms is -66 dBFS, and the minimum is -60" in refused(path)
    assert read_audio(path, any_level=True).seconds == pytest.approx(0.2)
    write_wav(path, Audio(SOUND.samples_N * np.float32(0.002 / loud(SOUND)), RATE))
    assert loudest_dbfs(read_audio(path)) == pytest.approx(-54, abs=0.5)


def loud(sound):
    return 10 ** (loudest_dbfs(sound) / 20)


def test_clipping(tmp_path):
    path = tmp_path / "a.wav"
    clipped = Audio((4 * SOUND.samples_N).clip(-1, 1), RATE)
    fraction = float((np.abs(clipped.samples_N) >= 1).mean())
    assert 0.05 < clipped_fraction(clipped) <= fraction
    write_wav(path, clipped)
    assert f"is clipped: {clipped_fraction(clipped):.2%} of its samples are in runs at full scale" in refused(path)
    assert len(read_audio(path, any_level=True).samples_N) == len(clipped.samples_N)
    # it is seen before resampling
    write_wav(path, Audio(clipped.samples_N, 22050))
    assert "is clipped" in refused(path, resample=True)
    # a peak that is brought to full scale is no clipping
    write_wav(path, Audio(SOUND.samples_N * 2, RATE))
    assert level_problem(read_audio(path)) is None


def test_floats_beyond_full_scale_are_not_said_to_be_clipped(tmp_path):
    wavfile.write(tmp_path / "a.wav", RATE, SOUND.samples_N * 32767)
    message = refused(tmp_path / "a.wav")
    assert "expected −1…1. Divide the samples by their peak" in message and "clipped" not in message


def test_mu_law_is_read_with_librosa(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.wav"
    soundfile.write(path, SOUND.samples_N, RATE, subtype="ULAW")
    assert "read it with library=librosa" in refused(path)
    assert np.abs(read_audio(path, library="librosa").samples_N - SOUND.samples_N).max() < 0.02


def test_runs_at_full_scale():
    """Five of ten samples: two runs of two and three; one alone, and two of opposite sign, are peaks."""
    samples_N = np.array([1, 1, 0, -1, -1, -1, 0, 1, -1, 0], np.float32)
    assert clipped_fraction(Audio(samples_N, RATE)) == 0.5
    assert clipped_fraction(Audio(samples_N[:0], RATE)) == 0


def test_samples_that_are_no_numbers(tmp_path):
    samples_N = SOUND.samples_N.copy()
    samples_N[3] = np.nan
    wavfile.write(tmp_path / "a.wav", RATE, samples_N)
    assert "has 1 samples that are NaN or infinite" in refused(tmp_path / "a.wav")
