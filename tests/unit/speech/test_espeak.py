"""`data=espeak`: the program and what is kept of it, prompts, deliveries and defects, gold of prosody, the corpus.

A stand-in for the program (`tests/helpers/speech/fake_espeak.py`) is always there; the last tests need the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.packs.speech.rewards.intelligibility import target_phones
from rlhf_lab.packs.speech.sound.audio import RATE
from rlhf_lab.packs.speech.sound.espeak import PROGRAM, Espeak, EspeakOptions
from rlhf_lab.packs.speech.world import espeak, gold
from rlhf_lab.packs.speech.world.english import (
    DEFECTS,
    HELD_OUT,
    HELD_OUT_VOICE,
    OF_THE_VOICE,
    STYLES,
    TRAINING_VOICES,
    VOICES,
    EnglishDelivery,
    EnglishUtterance,
    EspeakReader,
    draw_english_delivery,
    draw_english_utterance,
    options_for,
    read_english_prompt,
    words_of,
)
from rlhf_lab.packs.speech.world.espeak import POINTS, EnglishWorld, build, prosody_gold
from rlhf_lab.packs.speech.world.prompts import NEW_VOICE
from rlhf_lab.packs.speech.world.settings import EspeakData as Settings

FAKE = Path(__file__).parents[2] / "helpers" / "speech" / "fake_espeak.py"
SIZES = (16, 64, 64, 16)
SMALL = Settings(train_pairs=16, test_pairs=10, test_voice=0.5, codebooks=SIZES)
OPTIONS = EspeakOptions("en-us+m3")
ASKED = EnglishUtterance("american man", "lively", "question", "Where is the red door?")
PROMPT = "\n\nHuman: american man lively question : where is the red door\n\nAssistant:"


def install(directory: Path, patch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in first in PATH and the user's cache into the directory. Return the log of its calls."""
    programs = directory / "bin"
    programs.mkdir()
    program = programs / PROGRAM
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" "$@"\n')
    program.chmod(0o755)
    calls = directory / "calls.jsonl"
    calls.touch()
    patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("FAKE_ESPEAK_CALLS", str(calls))
    patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    return calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The log of the stand-in, which is installed; the codec of its worlds is fitted on few clips."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(espeak, "FITTED_CLIPS", 24)
        yield install(tmp_path_factory.mktemp("espeak"), patch)


@pytest.fixture(scope="module")
def world(calls: Path) -> EnglishWorld:
    return EnglishWorld(Settings(test_voice=0.5, codebooks=SIZES))


def made(calls: Path) -> list[list[str]]:
    return [json.loads(line) for line in calls.read_text().splitlines()]


# The program


def test_without_the_program_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"not installed.*apt-get install espeak-ng.*data=speech"):
        build(SMALL)


def test_the_options_reach_the_program(monkeypatch, tmp_path):
    calls = install(tmp_path, monkeypatch)
    samples = Espeak().say("Salt & pepper", EspeakOptions("en-us+f2", 200, 40, 0, 90))
    (call,) = made(calls)
    named = dict(pairwise(call))
    assert [named[name] for name in ("-v", "-s", "-p", "-a")] == ["en-us+f2", "200", "40", "90"]
    assert call[-1] == '<prosody range="0">Salt &amp; pepper</prosody>'
    assert samples.dtype == np.float32
    # 17 characters at 200 words a minute, and the silence after them
    assert len(samples) / RATE == pytest.approx(17 * 9 / 200 + 0.2, abs=0.001)
    assert 0.1 < np.abs(samples).max() <= 1


def test_a_text_is_said_once_for_the_same_options_and_version(monkeypatch, tmp_path):
    calls = install(tmp_path, monkeypatch)
    first = Espeak().say("Hello", OPTIONS)
    assert np.array_equal(first, Espeak().say("Hello", OPTIONS))
    assert len(made(calls)) == 1
    (kept,) = (tmp_path / "cache" / "rlhf_lab" / "espeak").rglob("*.wav")
    for changed in (replace(OPTIONS, pitch=51), replace(OPTIONS, pitch_range=49)):
        Espeak().say("Hello", changed)
    Espeak().say("Hello!", OPTIONS)
    assert len(made(calls)) == 4
    kept.write_bytes(kept.read_bytes()[:200])
    assert np.array_equal(first, Espeak().say("Hello", OPTIONS))  # spoken again, and complete again
    assert np.array_equal(first, Espeak().say("Hello", OPTIONS))
    assert len(made(calls)) == 5
    monkeypatch.setenv("FAKE_ESPEAK_VERSION", "2.0")
    Espeak().say("Hello", OPTIONS)
    assert len(made(calls)) == 6


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    calls = install(tmp_path, monkeypatch)
    (tmp_path / "file").touch()
    program = Espeak(tmp_path / "file" / "below")
    assert np.array_equal(program.say("Hello", OPTIONS), program.say("Hello", OPTIONS))
    assert len(made(calls)) == 2


def test_what_the_program_says_of_its_failure_is_passed_on(monkeypatch, tmp_path):
    install(tmp_path, monkeypatch)
    with pytest.raises(DataError, match=r"voice does not exist.*run it yourself.*en-xx"):
        Espeak().say("Hello", EspeakOptions("en-xx"))


# Prompts


def test_prompts_round_trip():
    assert ASKED.prompt == PROMPT
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for _ in range(200):
            utterance = draw_english_utterance(rng, split, 0.3)
            assert read_english_prompt(utterance.prompt) == utterance
            assert (utterance.text in HELD_OUT) == (split == "test")
            assert split == "test" or utterance.voice in TRAINING_VOICES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lively", "angry"), "unknown style 'angry'; use one of neutral"),
        (("american man", "welsh man"), "unknown voice 'welsh man'"),
        (("red", "blue"), "is not a text of category question; use one of 'where is the red door'"),
        (("question", "list"), "is not a text of category list"),
        (("Human:", "Person:"), "is not a prompt of data=espeak"),
    ],
)
def test_other_prompts_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        read_english_prompt(PROMPT.replace(*change))


# Deliveries


def test_options_follow_voice_style_and_hurry():
    assert options_for(ASKED, EnglishDelivery()) == EspeakOptions("en-us+m3", 185, 58, 85, 80)
    assert options_for(ASKED, EnglishDelivery("fast", 1.0)).words_per_minute == round(2.1 * 185)
    assert options_for(ASKED, EnglishDelivery("monotone", 1.0)).words_per_minute == 185
    whispered = replace(ASKED, style="whispered", voice="british woman")
    assert options_for(whispered, EnglishDelivery()).voice == "en+whisperf"


def test_each_defect_does_what_it_says(calls):
    reader = EspeakReader(Espeak())
    utterance = replace(ASKED, style="neutral")
    requested = reader.read(utterance, EnglishDelivery())

    def read(defect: str, severity: float = 1.0):
        return reader.read(utterance, EnglishDelivery(defect, severity))

    def movement(frames) -> float:
        return float(np.log2(frames.f0_T[frames.voiced_T]).std())

    assert requested.energy_T[[0, -1]].min() > requested.energy_T.max() - 35  # no silence around it
    assert movement(read("monotone")) == pytest.approx(0, abs=1e-9)
    assert movement(read("monotone", 0.4)) == pytest.approx(0.6 * movement(requested))
    assert len(read("fast")) == pytest.approx(len(requested) / 2.1, abs=2)
    assert np.allclose(requested.energy_T - read("quiet", 0.5).energy_T, 9)
    assert len(read("clipped")) == round(0.55 * len(requested))
    paused = read("silences")
    assert len(paused) == len(requested) + 20
    assert paused.energy_T[paused.energy_T <= -70].size == 20
    hoarse = read("hoarse")
    voiced = requested.voiced_T
    assert (hoarse.aperiodicity_T[voiced] >= requested.aperiodicity_T[voiced] + 0.3).all()


def test_a_whisper_has_no_pitch_and_no_defect_of_the_voice(calls):
    frames = EspeakReader(Espeak()).read(replace(ASKED, style="whispered"), EnglishDelivery())
    assert not frames.voiced_T.any()
    rng = np.random.default_rng(0)
    defects = {draw_english_delivery(rng, STYLES["whispered"], 0.0).defect for _ in range(200)}
    assert defects == set(DEFECTS) - set(OF_THE_VOICE)


# Gold


def test_points_of_gold_by_hand():
    assert POINTS.keys() == gold.ASPECTS.keys()
    assert prosody_gold(dict.fromkeys(POINTS, 1.0)) == 5
    # half of the movement, nothing of the level
    assert prosody_gold(dict.fromkeys(POINTS, 1.0) | {"movement": 0.5, "level": 0.0}) == 5 - 1.25 - 1.5


def test_what_is_said_as_asked_has_the_most_and_garble_the_least(world):
    measured = world.measure([PROMPT] * 3, [world.say(PROMPT), "no stream", ""])
    assert measured["gold"].tolist() == [5, -5, -5]
    assert measured["garble"].tolist() == [0, 1, 1]
    assert np.isnan(measured["phone_error"]).all()


@pytest.mark.parametrize("defect", DEFECTS)
def test_every_defect_costs_gold(world, defect):
    prompts = [replace(ASKED, style=style).prompt for style in ("neutral", "lively")]
    weak, strong = (
        world.measure(prompts, [world.say(prompt, EnglishDelivery(defect, severity)) for prompt in prompts])["gold"]
        for severity in (0.4, 1.0)
    )
    assert strong.mean() < weak.mean() < 5
    assert strong.mean() < 4.7


def test_the_target_follows_the_style(world):
    """The right target of a lively style is wrong for a firm one."""
    firm = replace(ASKED, style="firm").prompt
    measured = world.measure([PROMPT, firm], [world.say(PROMPT), world.say(PROMPT)])["gold"]
    assert measured[1] < measured[0] - 1.5


# The corpus


@pytest.mark.slow
def test_the_corpus_of_the_stand_in(calls, world):
    corpus = build(SMALL)
    text = len(made(calls))
    assert (len(corpus.train), len(corpus.test), corpus.name) == (16, 10, "espeak")
    assert corpus.renderer is not None and corpus.renderer.sizes == SIZES
    (clip,) = corpus.renderer.render([corpus.test[0].chosen])
    assert clip.seconds == pytest.approx(corpus.test[0].meta["audio_seconds_chosen"])
    metadata = [corpus.task(pair.prompt).metadata for pair in corpus.test]
    assert {row["words"] for row in metadata} <= {words_of(text) for text in HELD_OUT}
    assert {row["category"] == NEW_VOICE for row in metadata} == {True, False}
    assert all((row["category"] == NEW_VOICE) == (row["voice"] == HELD_OUT_VOICE) for row in metadata)
    trained = {corpus.task(pair.prompt).metadata["words"] for pair in corpus.train}
    assert not trained & {words_of(text) for text in HELD_OUT}
    statistics = corpus.report["train"].statistics
    assert "phone error, chosen" not in statistics  # nobody knows it
    assert statistics["gold mean, chosen"] > statistics["gold mean, rejected"]
    # letters of English words are no phones: the guard refuses
    with pytest.raises(DataError, match="no column text"):
        target_phones(metadata[0], corpus.test[0].prompt)
    again = build(SMALL)
    assert again.fingerprint == corpus.fingerprint
    assert build(replace(SMALL, seed=1)).fingerprint != corpus.fingerprint
    assert [pair.chosen for pair in again.train] == [pair.chosen for pair in corpus.train]
    # the second corpus says nothing, the third what its own draws add
    assert all(call not in made(calls)[:text] for call in made(calls)[text:])


# The real program

INSTALLED = shutil.which(PROGRAM)
"""Path of the program before the stand-in is put before it."""
REAL = pytest.mark.skipif(INSTALLED is None, reason="apt-get install espeak-ng")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(INSTALLED or "").parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@REAL
@pytest.mark.slow
def test_voices_and_styles_of_the_real_program(real):
    reader = EspeakReader(Espeak())
    assert "fake" not in reader.espeak.version

    def pitches(voice: str, style: str):
        frames = reader.read(replace(ASKED, voice=voice, style=style), EnglishDelivery())
        return frames.f0_T[frames.voiced_T]

    for voice in VOICES:
        lowest, highest = (80, 130) if voice.endswith(" man") else (150, 260)
        assert lowest < np.median(pitches(voice, "neutral")) < highest
        # between quantiles, as the analysis takes single frames for an octave higher
        lively, firm = (np.ptp(np.log2(np.quantile(pitches(voice, style), [0.1, 0.9]))) for style in ("lively", "firm"))
        assert lively > 2 * firm


@REAL
@pytest.mark.slow
def test_a_corpus_of_the_real_program(real):
    corpus = build(replace(SMALL, train_pairs=120, codebooks=(64, 64, 64, 64)))
    statistics = corpus.report["train"].statistics
    assert statistics["gold mean, chosen"] > statistics["gold mean, rejected"] + 0.5
    assert statistics["ideal accuracy"] > 0.75
    lengths = [len(pair.chosen.split()) for pair in corpus.train]
    assert np.median(lengths) < 200 and max(lengths) < 400
