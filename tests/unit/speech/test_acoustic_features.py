"""The seven features on sounds where they are known, and their extraction from many clips."""

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import fft
from synthetic_audio import RATE, audio, glide, harmonics, silence, tone, with_noise

from rlhf_lab.core.errors import ConfigError, DataError, LabError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound import features
from rlhf_lab.packs.speech.sound.audio import level_problem, write_wav
from rlhf_lab.packs.speech.sound.command import run
from rlhf_lab.packs.speech.sound.features import NAMES, extract, extract_many, fill_undefined
from rlhf_lab.packs.speech.sound.recogniser import observe
from rlhf_lab.packs.speech.sound.spectrum import spectra


def measure(sound_N):
    return dict(zip(NAMES, extract(audio(sound_N)), strict=True))


def test_pitch_sd_of_a_glide():
    """An octave that is even in semitones has the standard deviation 12 / √12."""
    assert measure(harmonics(glide(100, 200)))["pitch_sd"] == pytest.approx(12 / np.sqrt(12), rel=0.02)
    assert measure(tone(120))["pitch_sd"] < 0.01


def test_voiced_and_silent_fractions():
    """.4 s voiced, .2 s noise, .4 s silence."""
    noise_N = 0.3 * np.random.default_rng(0).standard_normal(int(0.2 * RATE))
    values = measure(np.concatenate([tone(150, 0.4), noise_N, silence(0.4)]))
    assert values["voiced_fraction"] == pytest.approx(0.4, abs=0.03)
    assert values["silence_fraction"] == pytest.approx(0.4, abs=0.03)


def test_energy_dynamics():
    """Two levels, half of the time each, differ by 20 dB: the standard deviation is 10 dB. Silence does not count."""
    steps_N = np.concatenate([tone(150, 0.5), 0.1 * tone(150, 0.5), silence(0.5)])
    assert measure(steps_N)["energy_dynamics"] == pytest.approx(10, rel=0.05)
    assert measure(tone(150))["energy_dynamics"] < 0.5


def test_mfcc_stability():
    """A steady tone changes least, a tone in noise more; noise, and a spectrum that changes every 50 ms, most."""
    bright_N = np.sin(2 * np.pi * 150 * 20 * np.arange(RATE) / RATE)
    alternates_N = (np.arange(RATE) // 800) % 2
    steady = measure(tone(150))["mfcc_stability"]
    changing = measure(tone(150) + 2 * alternates_N * bright_N)["mfcc_stability"]
    noise = measure(np.random.default_rng(0).standard_normal(RATE))["mfcc_stability"]
    hoarse = measure(with_noise(tone(150), 10))["mfcc_stability"]
    assert 1 > steady > 0.7 > hoarse > 0.4 > max(changing, noise) > min(changing, noise) > 0.2


def test_what_changes_across_a_pause_is_no_step():
    """Two frames of one sound, silence, two of another: both steps between sounding neighbours are 0.

    20 dB more in one of 40 mel filters are, without the ½ dB of the mean level, √((20² − 40·½²)/40) = 3.1225 dB. With
    no pause in between that is one step of three: 1/(1 + 3.1225/3).
    """
    dark_M = np.zeros(features.MEL_FILTERS)
    bright_M = np.eye(features.MEL_FILTERS)[0] * 20

    def stability(*levels: np.ndarray | None) -> float:
        rows_TM = np.array([dark_M if level is None else level for level in levels])
        mfcc_TC = fft.dct(rows_TM, type=2, axis=1, norm="ortho")
        sounding_T = np.array([level is not None for level in levels])
        return features._stability(SimpleNamespace(mfcc_TC=lambda: mfcc_TC), sounding_T)

    assert features.MEL_FILTERS == 40
    assert stability(dark_M, dark_M, None, bright_M, bright_M) == 1.0
    assert stability(dark_M, dark_M, bright_M, bright_M) == pytest.approx(1 / (1 + 3.1225 / 3), abs=1e-4)
    assert math.isnan(stability(dark_M, None, bright_M)), "no two neighbours sound"


def test_the_distance_of_mfcc_is_in_db():
    """All 40 coefficients have the root mean square difference of the 40 mel levels."""
    measured = spectra(audio(with_noise(tone(150), 10)))
    levels_TM, all_TC = measured.mel_levels_TM(), measured.mfcc_TC(40)
    in_levels = np.sqrt((np.diff(levels_TM, axis=0) ** 2).mean(axis=1))
    in_coefficients = np.sqrt((np.diff(all_TC, axis=0) ** 2).sum(axis=1) / 40)
    np.testing.assert_allclose(in_levels, in_coefficients, rtol=1e-5)


def test_spectral_centroid():
    """The centroid is the frequency of one sine, the middle of two equal ones, and half of the band of white noise."""
    time_N = np.arange(RATE) / RATE
    first_N, second_N = (np.sin(2 * np.pi * f * time_N) for f in (1000, 3000))
    assert measure(first_N)["spectral_centroid"] == pytest.approx(1000, rel=0.03)
    assert measure(first_N + second_N)["spectral_centroid"] == pytest.approx(2000, rel=0.03)
    noise_N = np.random.default_rng(0).standard_normal(RATE)
    assert measure(noise_N)["spectral_centroid"] == pytest.approx(4000, rel=0.03)


def test_no_feature_but_silence_depends_on_the_level():
    """Twenty dB quieter is the same, as long as the floor of the mel levels is far below."""
    sound_N = with_noise(harmonics(glide(100, 200)), 15)
    loud, quiet = extract(audio(sound_N)), extract(audio(sound_N, peak=0.05))
    np.testing.assert_allclose(loud, quiet, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("samples", [0, 100, RATE])
def test_a_clip_without_sound_has_no_other_features(samples):
    found = measure(np.zeros(samples, np.float32))
    assert (found.pop("voiced_fraction"), found.pop("silence_fraction")) == (0, 1)
    assert np.isnan(list(found.values())).all()


@pytest.mark.parametrize("samples", range(0, 2000, 80))
def test_any_length_has_finite_features_when_filled(samples):
    rng = np.random.default_rng(samples)
    for sound_N in (tone(200)[:samples], rng.standard_normal(samples), silence(samples / RATE)):
        filled_N7 = fill_undefined(extract(audio(sound_N))[None])
        assert filled_N7.shape == (1, 7) and np.isfinite(filled_N7).all()


def test_what_is_filled():
    noise, nothing = np.random.default_rng(0).standard_normal(RATE), silence(1)
    found_N7 = extract_many([audio(noise), audio(nothing), audio(tone(150))])
    filled_N7 = fill_undefined(found_N7)
    assert filled_N7[0, :2].tolist() == [0, -1]
    assert filled_N7[1].tolist() == [0, -1, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(filled_N7[2], found_N7[2])
    with pytest.raises(LabError, match="row 1: voiced_fraction is NaN"):
        fill_undefined(np.array([found_N7[2], np.full(7, np.nan)]))


CLIPS = [audio(tone(f0, 0.3)) for f0 in (100, 150, 200)]


def test_all_files_that_cannot_be_read_are_listed(tmp_path):
    write_wav(tmp_path / "good.wav", CLIPS[0])
    write_wav(tmp_path / "silent.wav", audio(silence(0.3)))
    write_wav(tmp_path / "slow.wav", Audio(CLIPS[1].samples_N, 8000))
    files = [tmp_path / name for name in ("none.wav", "silent.wav", "slow.wav", "good.wav")]
    with pytest.raises(DataError) as error:
        extract_many(files)
    lines = str(error.value).splitlines()
    assert lines[0] == "3 of 4 clips cannot be measured:"
    assert ["is not a file" in lines[1], "is silence" in lines[2], "8000 samples per second" in lines[3]] == [True] * 3
    assert extract_many(files[2:], resample=True).shape == (2, 7)


def test_features_do_not_change():
    """Acoustic reward models are trained on them."""
    found = extract(audio(with_noise(harmonics(glide(110, 220, 0.5)), 12)))
    np.testing.assert_allclose(found, [3.4517, 9.7022, 1, 0.3639, 0.45227, 2272.67, 0], rtol=1e-3)


@pytest.mark.parametrize("library", ["numpy", "librosa"])
def test_a_constant_offset_changes_no_feature(library):
    """An offset of .001, 33 steps of 16-bit PCM, is as loud as the limit of silence."""
    sound_N = np.concatenate([with_noise(tone(150, 0.3), 12), silence(0.3)]).astype(np.float32)
    expected = extract(Audio(sound_N, RATE), library=library)
    for offset in (0.001, 0.05):
        found = extract(Audio(sound_N + np.float32(offset), RATE), library=library)
        np.testing.assert_allclose(found, expected, rtol=1e-3)
        observed = observe(Audio(sound_N + np.float32(offset), RATE))
        np.testing.assert_allclose(observed, observe(Audio(sound_N, RATE)), atol=0.1)
    assert level_problem(Audio(np.full(RATE, 0.2, np.float32), RATE)).startswith("is silence")


@pytest.fixture
def directory(tmp_path):
    """Three clips, one of them noise without pitch, one in a folder below."""
    clips = tmp_path / "clips"
    (clips / "more").mkdir(parents=True)
    write_wav(clips / "b.wav", audio(tone(150, 0.3)))
    write_wav(clips / "more" / "a.WAV", audio(harmonics(glide(100, 200, 0.4))))
    write_wav(clips / "noise.wav", audio(np.random.default_rng(0).standard_normal(4800)))
    (clips / "notes.txt").write_text("no audio")
    return clips


def test_a_folder_becomes_a_table(directory, tmp_path, capsys):
    to = tmp_path / "new" / "features.csv"
    run([str(directory), f"to={to}"])
    rows = list(csv.DictReader(to.open()))
    files = [directory / "b.wav", directory / "more" / "a.WAV", directory / "noise.wav"]
    assert [row["file"] for row in rows] == list(map(str, files))
    table_N7 = np.array([[float(row[name] or "nan") for name in NAMES] for row in rows])
    np.testing.assert_array_equal(table_N7, extract_many(files))
    assert rows[2]["pitch_sd"] == rows[2]["hnr"] == ""
    printed = capsys.readouterr().out
    assert "features of 3 clips" in printed and "features.csv: 3 clips" in printed
    hnr = next(line for line in printed.splitlines() if "hnr" in line)
    assert hnr.split("│")[-2].strip() == "1"  # undefined


def test_another_rate(directory):
    write_wav(directory / "slow.wav", Audio(audio(tone(150, 0.3)).samples_N, 8000))
    with pytest.raises(DataError, match=r"1 of 4 clips cannot be measured:\n.*slow\.wav has 8000 samples per second"):
        run([str(directory)])
    run([str(directory), "resample=true"])
    run([str(directory / "slow.wav"), "rate=8000"])


def test_a_damaged_file_is_named(directory):
    (directory / "d.wav").write_bytes(b"not a WAV file")
    with pytest.raises(DataError, match=r"d\.wav is damaged"):
        run([str(directory)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["to=x.csv"], "features takes WAV files or directories"),
        (["CLIPS", "too=x.csv"], "too is not a setting; did you mean to"),
        (["CLIPS", "rate=fast", "resample=1"], "rate=fast is text, expected a whole number\nresample=1 is"),
        (["CLIPS", "rate=0"], "rate=0 must be above 0"),
        (["EMPTY"], "has no .wav files"),
    ],
)
def test_a_wrong_command(directory, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    positions = {"CLIPS": str(directory), "EMPTY": str(tmp_path / "empty")}
    with pytest.raises(ConfigError) as error:
        run([positions.get(word, word) for word in words])
    assert message in str(error.value)
    assert not list(tmp_path.glob("*.csv"))
