"""`features`: WAV files in, a summary and a table out."""

import csv
from pathlib import Path

import numpy as np
import pytest
from synthetic_audio import audio, glide, harmonics, tone

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import write_wav
from rlhf_lab.packs.speech.sound.command import run
from rlhf_lab.packs.speech.sound.features import NAMES, extract_many


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
    assert len((tmp_path / "new" / "features.csv.cache.jsonl").read_text().splitlines()) == 3
    printed = capsys.readouterr().out
    assert "features of 3 clips" in printed and "features.csv: 3 clips" in printed
    hnr = next(line for line in printed.splitlines() if "hnr" in line)
    assert hnr.split("│")[-2].strip() == "1"  # undefined


def test_files_without_a_table(directory, tmp_path, capsys):
    run([str(directory / "b.wav")])
    assert "features of 1 clips" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clips"]


def test_another_rate(directory):
    write_wav(directory / "slow.wav", Audio(audio(tone(150, 0.3)).samples_N, 8000))
    with pytest.raises(DataError, match=r"1 of 4 files cannot be measured:\n.*slow\.wav has 8000 samples per second"):
        run([str(directory)])
    run([str(directory), "resample=true"])
    run([str(directory / "slow.wav"), "rate=8000"])


def test_a_damaged_file_is_named_and_can_be_left_out(directory, tmp_path, capsys):
    (directory / "d.wav").write_bytes(b"not a WAV file")
    with pytest.raises(DataError, match=r"d\.wav is damaged(.|\n)*skip them with max_bad_files=1"):
        run([str(directory), f"to={tmp_path / 'features.csv'}"])
    run([str(directory), f"to={tmp_path / 'features.csv'}", "max_bad_files=1"])
    printed = capsys.readouterr().out
    assert "1 of 4 files are skipped" in printed and "d.wav is damaged" in printed and "features of 3 clips" in printed
    rows = (tmp_path / "features.csv").read_text().splitlines()[1:]
    clips = {path.name for path in directory.rglob("*") if path.suffix.lower() == ".wav"}
    assert {Path(row.split(",")[0]).name for row in rows} == clips - {"d.wav"}
    with pytest.raises(DataError, match=r"Repair or remove them$"):
        run([str(directory / "d.wav"), "max_bad_files=9"])


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
