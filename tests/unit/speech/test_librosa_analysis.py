"""NumPy and librosa measure the same; librosa reads other formats. The tests need the extra `speech`."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from synthetic_audio import RATE, audio, draw_speech, glide, harmonics, silence, tone, with_noise

from rlhf_lab.core.errors import ConfigError, DataError, MissingDependency
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound import librosa_analysis, spectrum
from rlhf_lab.packs.speech.sound.audio import change_rate, read_audio, write_wav
from rlhf_lab.packs.speech.sound.command import run
from rlhf_lab.packs.speech.sound.features import NAMES, extract, extract_many
from rlhf_lab.packs.speech.sound.librosa_analysis import compare_libraries
from rlhf_lab.packs.speech.sound.periodicity import periodicity

pytest.importorskip("librosa")
soundfile = pytest.importorskip("soundfile")

CLIPS = [
    audio(with_noise(harmonics(glide(100, 200)), 20)),
    audio(with_noise(harmonics(glide(220, 150, 0.5)), 15)),
    *draw_speech(2, seed=0)[0],
]


def test_the_features_agree_within_a_hundredth():
    for clip in (*CLIPS, Audio(CLIPS[0].samples_N, 22050)):
        np.testing.assert_allclose(extract(clip, library="librosa"), extract(clip), rtol=0.01)


@pytest.mark.parametrize("samples", [0, 1, 100, 159, 160, 1000])
def test_short_and_silent_clips_have_the_same_frames(samples):
    for samples_N in (CLIPS[0].samples_N[:samples], np.zeros(samples, np.float32)):
        clip = Audio(samples_N, RATE)
        ours, theirs = spectrum.spectra(clip), librosa_analysis.spectra(clip)
        assert theirs.power_TF.shape == ours.power_TF.shape and theirs.level_T.shape == ours.level_T.shape
        assert len(librosa_analysis.pyin_f0(clip)) == len(ours.level_T)
        np.testing.assert_allclose(extract(clip, library="librosa"), extract(clip), rtol=0.01)


def test_pyin_tracks_a_glide():
    """An octave that is even in semitones has the standard deviation 12 / √12; both trackers are within 2 %."""
    clip = audio(harmonics(glide(100, 200)))
    f0_T = librosa_analysis.pyin_f0(clip)
    voiced_T = f0_T > 0
    assert voiced_T.mean() > 0.9
    true_T = glide(100, 200)[80::160]
    assert np.median(np.abs(f0_T / true_T - 1)[voiced_T]) < 0.01
    both_T = voiced_T & periodicity(clip).voiced_T
    assert np.median(np.abs(f0_T / periodicity(clip).f0_T - 1)[both_T]) < 0.01
    found = dict(zip(NAMES, extract(clip, pitch="pyin"), strict=True))
    assert found["pitch_sd"] == pytest.approx(12 / np.sqrt(12), rel=0.02)
    # HNR does not depend on the tracker
    assert found["hnr"] == extract(clip)[NAMES.index("hnr")]


def test_resampled_audio_agrees():
    """A tone below the new limit keeps its root mean square, and both libraries give the same samples within 1 %."""
    samples_N = audio(tone(440)).samples_N
    ours_N, theirs_N = (change_rate(samples_N, RATE, 22050, library) for library in ("numpy", "librosa"))
    assert len(ours_N) == len(theirs_N) == 22050
    inner = slice(1000, -1000)  # the filters differ at the ends
    difference_N = (ours_N - theirs_N)[inner]
    assert np.sqrt((difference_N**2).mean()) < 0.01 * ours_N[inner].std()


@pytest.mark.parametrize("ending", ["flac", "ogg", "mp3", "aiff"])
def test_other_formats_are_read(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, CLIPS[0].samples_N, RATE)
    read = read_audio(path, library="librosa")
    assert read.rate == RATE and read.samples_N.dtype == np.float32
    assert read.seconds == pytest.approx(1, abs=0.1)  # MP3 pads to whole frames
    # compressed audio differs in its noise, but not in its pitch
    measured = dict(zip(NAMES, extract(read, library="librosa"), strict=True))
    assert measured["pitch_sd"] == pytest.approx(extract(CLIPS[0])[0], rel=0.05)
    if ending in ("flac", "aiff"):  # 16-bit PCM
        assert np.abs(read.samples_N - CLIPS[0].samples_N).max() <= 1 / 32768
    with pytest.raises(DataError, match=r"is damaged or not a WAV file.*library=librosa"):
        read_audio(path)


def test_other_formats_are_checked_like_wav_files(tmp_path):
    soundfile.write(tmp_path / "stereo.flac", np.zeros((1000, 2)), RATE)
    soundfile.write(tmp_path / "silent.flac", silence(0.5), RATE)
    soundfile.write(tmp_path / "slow.flac", CLIPS[0].samples_N, 8000)
    (tmp_path / "damaged.flac").write_bytes(b"fLaC" + bytes(100))
    for name, message in (
        ("stereo", "has 2 channels; expected one"),
        ("silent", "is silence"),
        ("slow", "has 8000 samples per second; expected 16000"),
        ("damaged", "is damaged or has a format that librosa cannot read"),
    ):
        with pytest.raises(DataError, match=message):
            read_audio(tmp_path / f"{name}.flac", library="librosa")
    assert read_audio(tmp_path / "slow.flac", library="librosa", resample=True).seconds == pytest.approx(2)


def test_the_command_reads_all_formats_of_a_directory(tmp_path, capsys):
    write_wav(tmp_path / "a.wav", CLIPS[0])
    soundfile.write(tmp_path / "b.flac", CLIPS[1].samples_N, RATE)
    to = tmp_path / "features.csv"
    run([str(tmp_path), "library=librosa", "pitch=pyin", f"to={to}"])
    rows = to.read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(tmp_path / name) for name in ("a.wav", "b.flac")]
    run([str(tmp_path), f"to={to}"])
    assert len(to.read_text().splitlines()) == 2  # only the WAV file
    capsys.readouterr()


def test_the_comparison_names_every_quantity_with_both_times(tmp_path, capsys):
    quantities = {one.name: one for one in compare_libraries(CLIPS)}
    for name in ("level (RMS)", "mel levels", "MFCC"):
        assert quantities[name].unit == "dB" and quantities[name].largest < 0.1
    for name in ("centroid", "resampled to half the rate: level"):
        assert quantities[name].unit == "%" and quantities[name].largest < 1
    assert quantities["F0 (autocorrelation, pYIN)"].median < 1
    assert all(one.numpy_ms > 0 and one.librosa_ms > 0 for one in quantities.values())
    write_wav(tmp_path / "a.wav", CLIPS[0])
    run([str(tmp_path), "compare=true"])
    printed = capsys.readouterr().out
    assert "NumPy and librosa on 1 clips" in printed and "MFCC" in printed
    with pytest.raises(ConfigError, match="compare=true prints a comparison"):
        run([str(tmp_path), "compare=true", "to=x.csv"])


def test_many_clips_are_measured_as_one():
    clip = CLIPS[0]
    np.testing.assert_allclose(extract_many([clip], pitch="pyin"), extract(clip, pitch="pyin")[None])


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "librosa", None)
    write_wav(tmp_path / "a.wav", CLIPS[0])
    for option in ("library=librosa", "pitch=pyin", "compare=true"):
        with pytest.raises(MissingDependency, match=r"pip install 'rlhf_lab\[speech\]'"):
            run([str(tmp_path), option])
    run([str(tmp_path)])  # the base installation measures
