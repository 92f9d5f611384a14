"""The speech world: prompts and their splits, deliveries and defects, gold, the listener, the corpus."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.environments.splits import SPLITS, split_of
from rlhf_lab.packs.speech.sound.periodicity import periodicity
from rlhf_lab.packs.speech.sound.renderer import render
from rlhf_lab.packs.speech.sound.stream import read_stream, write_stream
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import MEASURES
from rlhf_lab.packs.speech.world.delivery import DEFECTS, Delivery, draw_delivery, perform
from rlhf_lab.packs.speech.world.phones import HELD_OUT_VOICE, TRAINING_VOICES, VOICES, VOWELS
from rlhf_lab.packs.speech.world.prompts import CATEGORIES, NEW_VOICE, STYLES, Utterance, draw_utterance, read_prompt
from rlhf_lab.packs.speech.world.recogniser import phone_error, recognise
from rlhf_lab.packs.speech.world.settings import Speech
from rlhf_lab.packs.speech.world.speech import SpeechWorld, build, statistics

WORLD = SpeechWorld(Speech())
PROMPT = "\n\nHuman: low dark lively question : ta ko ma ne\n\nAssistant:"
ASKED = Utterance("low dark", "lively", "question", (("ta", "ko"), ("ma", "ne")))


@pytest.fixture(scope="module")
def utterances() -> list[Utterance]:
    rng = np.random.default_rng(1)
    return [draw_utterance(rng, "test", 0.2) for _ in range(60)]


@pytest.fixture(scope="module")
def pairs():
    return {split: WORLD.sample(count, split)[0] for split, count in (("train", 500), ("test", 200))}


def grade(*streams: str, prompt: str = PROMPT) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in WORLD.measure([prompt] * len(streams), streams).items()}


# Prompts


def test_a_prompt_by_hand():
    assert ASKED.prompt == PROMPT
    assert read_prompt(PROMPT) == ASKED
    assert ASKED.text == "ta ko ma ne"
    assert ASKED.phones == "takomane"
    assert ASKED.metadata() == {
        "text": "ta ko ma ne",
        "category": "question",
        "sentence": "question",
        "style": "lively",
        "description": "low dark voice, lively: wide pitch movement, a little fast and loud",
        "voice": "low dark",
    }
    assert replace(ASKED, voice=HELD_OUT_VOICE).metadata()["category"] == NEW_VOICE


def test_every_drawn_prompt_can_be_read():
    rng = np.random.default_rng(0)
    for split in SPLITS:
        for _ in range(200):
            utterance = draw_utterance(rng, split, 0.5)
            assert read_prompt(utterance.prompt) == utterance
            assert utterance.split == split


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("low dark", "deep dark"), "unknown voice 'deep dark'; use one of low dark"),
        (("lively", "sad"), "unknown style 'sad'; use one of neutral"),
        (("question", "riddle"), "unknown category 'riddle'; use one of statement"),
        (("ta ko", "at ko"), "'at' is not a syllable; write a consonant and a vowel"),
        ((" : ", " "), "is not a prompt of the speech world; expected a transcript of"),
    ],
)
def test_other_text_is_no_prompt(change, message):
    with pytest.raises(DataError, match=message):
        WORLD.measure([PROMPT.replace(*change)], [""])


@pytest.mark.slow
def test_texts_and_the_held_out_voice_are_never_in_training(pairs):
    spoken = {split: [read_prompt(pair.prompt) for pair in pairs[split]] for split in SPLITS}
    assert not {u.text for u in spoken["train"]} & {u.text for u in spoken["test"]}
    assert {split_of(u.text) for u in spoken["test"]} == {"test"}
    assert {u.voice for u in spoken["train"]} == set(TRAINING_VOICES)
    fraction = np.mean([u.voice == HELD_OUT_VOICE for u in spoken["test"]])
    assert fraction == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / 200))


# Style of the speech


def voiced_semitones(utterance: Utterance, delivery: Delivery | None = None) -> np.ndarray:
    frames = perform(utterance, delivery)
    return 12 * np.log2(frames.f0_T[frames.voiced_T] / utterance.speaker.pitch)


def test_melodies():
    ends = {name: voiced_semitones(replace(ASKED, category=name, style="neutral")) for name in CATEGORIES}
    assert ends["question"][-1] > 4
    assert ends["statement"][-1] < -4
    assert ends["exclamation"][:6].max() > ends["statement"][:6].max() + 2
    assert ends["aside"].mean() < -2
    pauses = {name: len(perform(replace(ASKED, category=name))) for name in CATEGORIES}
    assert pauses["list"] > pauses["statement"]


def test_styles():
    by_style = {name: perform(replace(ASKED, style=name, category="request")) for name in STYLES}
    assert len(by_style["brisk"]) < len(by_style["neutral"]) < len(by_style["calm"])
    movement = {name: voiced_semitones(replace(ASKED, style=name, category="request")).std() for name in STYLES}
    assert movement["calm"] < movement["neutral"] < movement["lively"]
    loud = {name: frames.energy_T.max() for name, frames in by_style.items()}
    assert loud["breathy"] < loud["calm"] < loud["neutral"] < loud["firm"]
    breath = {name: np.median(frames.aperiodicity_T[frames.voiced_T]) for name, frames in by_style.items()}
    assert breath["breathy"] > 0.25 > 0.1 > breath["neutral"] > breath["firm"]


def test_voices_are_heard_in_the_audio():
    """The median of what autocorrelation finds in the samples, 5 % around what a statement's melody makes of the
    rest."""
    for voice in VOICES.values():
        utterance = Utterance(voice.name, "calm", "statement", (("ma", "ne"), ("lo", "ri")))
        frames = perform(utterance)
        requested = np.median(frames.f0_T[frames.voiced_T])
        measured = periodicity(Audio(render(frames), 16_000))
        assert np.median(measured.f0_T[measured.voiced_T]) == pytest.approx(requested, rel=0.05)


def test_defects_do_what_they_are_called():
    simple = perform(ASKED)
    text = {name: perform(ASKED, Delivery(name, 1.0)) for name in DEFECTS}
    assert voiced_semitones(ASKED, Delivery("monotone", 1.0)).std() < 0.01
    assert len(text["fast"]) < 0.65 * len(simple)
    assert np.median(text["hoarse"].aperiodicity_T[text["hoarse"].voiced_T]) > 0.5
    assert len(text["clipped"]) == pytest.approx(0.55 * len(simple), abs=1)
    assert len(text["silences"]) >= len(simple) + 18  # .8 s
    assert voiced_semitones(ASKED, Delivery("wild", 1.0)).std() > voiced_semitones(ASKED).std() + 1
    flatness = {name: frames.envelope_TD.std(0).mean() for name, frames in (("plain", simple), *text.items())}
    assert flatness["mumbled"] < 0.5 * flatness["plain"]


def test_shares_of_defects():
    rng = np.random.default_rng(0)
    counts = Counter(draw_delivery(rng, 0.25).defect for _ in range(4000))
    assert counts[""] / 4000 == pytest.approx(0.25, abs=0.025)
    for name, fraction in DEFECTS.items():
        assert counts[name] / 4000 == pytest.approx(0.75 * fraction, abs=0.025)


# Gold


def test_gold_by_hand():
    """Ten points: 4 intelligible (error .25 leaves 3), movement 1.6 × ½, all of the other 4.4; and −5."""
    fractions = dict.fromkeys(gold.ASPECTS, 1.0) | {"movement": 0.5}
    assert gold.gold(fractions, 0.25) == pytest.approx(-5 + 3 + 0.8 + 4.4)
    assert gold.INTELLIGIBILITY + sum(aspect.points for aspect in gold.ASPECTS.values()) == pytest.approx(10)
    assert gold.gold(dict.fromkeys(gold.ASPECTS, 0.0), 3.0) == gold.LEAST


def test_an_aspect_by_hand():
    """A difference of one width leaves exp(−½)."""
    requested = gold.Measurements(2.0, -3.0, 0.0, 0.9, -12.0, -24.0, 4.0, 0.1)
    assert gold.score_aspects(requested, requested) == dict.fromkeys(gold.ASPECTS, 1.0)
    measured = replace(requested, ending=-0.5, movement=2.5 * np.exp(-0.45) - 0.5, pause=0.4)
    fractions = gold.score_aspects(measured, requested)
    for name in ("ending", "movement", "pause"):
        assert fractions.pop(name) == pytest.approx(np.exp(-0.5))
    assert set(fractions.values()) == {1.0}


def test_gold_of_what_was_asked_for(utterances):
    measured = WORLD.measure([u.prompt for u in utterances], [WORLD.say(u.prompt) for u in utterances])
    assert all(np.allclose(measured[name], 1) for name in gold.ASPECTS)
    assert np.allclose(measured["gold"], 5 - 4 * measured["phone_error"])
    assert measured["phone_error"].mean() < 0.1  # the recogniser's own errors
    assert list(measured) == [measure.name for measure in MEASURES]


@pytest.mark.parametrize("defect", DEFECTS)
def test_gold_falls_with_each_defect(utterances, defect):
    """Mean of 60 utterances at severities 0, ⅓, ⅔, 1: each step is lower, the last by .7 or more below the first."""
    means = []
    for severity in (0, 1 / 3, 2 / 3, 1):
        streams = [
            WORLD.say(u.prompt, Delivery(defect, severity, unsteady=0.1, seed=i)) for i, u in enumerate(utterances)
        ]
        means.append(WORLD.measure([u.prompt for u in utterances], streams)["gold"].mean())
    assert means == sorted(means, reverse=True)
    assert means[0] - means[-1] > 0.7


def test_other_words_cost_intelligibility(utterances):
    prompts = [u.prompt for u in utterances]
    streams = [WORLD.say(prompt) for prompt in prompts]
    others = WORLD.measure(prompts, streams[1:] + streams[:1])
    assert others["phone_error"].mean() > 0.8
    assert others["gold"].mean() < 1


def test_replies_without_sound():
    """LEAST, finite, whatever is wrong; garble is 0 only if there is a full frame."""
    silence = write_stream(np.tile([[0, 0, 0, 0]], (5, 1)))
    responses = ["", "hello", "a1 b.", "a1 b. c. d. a99", silence]
    measured = grade(*responses)
    assert measured["gold"] == [gold.LEAST] * 5
    assert measured["garble"] == [1, 1, 1, 1, 0]
    assert measured["phone_error"] == [1] * 5
    assert measured["audio_seconds"] == [0, 0, 0, 0, 0.2]


def test_a_cut_stream_is_graded_by_its_whole_frames():
    stream = WORLD.say(PROMPT)
    cut = " ".join(stream.split()[:60])
    measured = grade(stream, cut)
    # 15 columns, the last 3 of them without the fourth code
    assert measured["audio_seconds"][1] == pytest.approx(12 / 25)
    assert measured["gold"][1] < measured["gold"][0] - 1
    assert measured["garble"] == [0, 0]


def test_one_frame_and_no_voice_are_graded():
    codes = read_stream(WORLD.say(PROMPT), 4)
    whispered = codes.copy()
    whispered[:, 1] = 0
    values = grade(write_stream(codes[4:5]), write_stream(whispered))
    assert np.isfinite(values["gold"]).all()
    assert max(values["gold"]) < 2


def test_the_recogniser(utterances):
    """On clean frames, which no codec has seen, and in a batch as alone."""
    frames = [perform(u) for u in utterances]
    voices = [u.speaker for u in utterances]
    recognised = recognise(frames, voices)
    errors = [phone_error(u.phones, phones) for u, phones in zip(utterances, recognised, strict=True)]
    assert np.mean(errors) < 0.1
    assert recognised == [recognise([clip], [voice])[0] for clip, voice in zip(frames, voices, strict=True)]
    assert recognise([], []) == []
    # syllables of a consonant and a vowel, for any recognition
    assert all(set(phones[1::2]) <= set(VOWELS) for phones in recognised if phones[0] not in VOWELS)


# The listener


@pytest.mark.slow
def test_the_listener_is_bradley_terry_on_gold():
    good, bad = WORLD.say(PROMPT), WORLD.say(PROMPT, Delivery("fast", 0.3))
    values = grade(good, bad)["gold"]
    n = 2000
    wins, probability = WORLD.prefer([PROMPT] * n, [good] * n, [bad] * n, seed=3)
    assert probability[0] == pytest.approx(1 / (1 + np.exp(-(values[0] - values[1]) / 0.5)))
    assert 0.5 < probability[0] < 0.99
    assert wins.mean() == pytest.approx(probability[0], abs=0.04)
    assert (wins == WORLD.prefer([PROMPT] * n, [good] * n, [bad] * n, seed=3)[0]).all()
    noiseless = SpeechWorld(Speech(temperature=0))
    assert noiseless.prefer([PROMPT], [good], [bad], seed=0)[1].tolist() == [1.0]


def test_the_listener_agrees_with_gold_as_often_as_computed(pairs):
    """Each pair's label agrees with gold with probability max(p, 1 − p): the mean of 500, within 3 standard errors."""
    metas = [pair.meta for pair in pairs["train"]]
    agrees = [meta["gold_chosen"] > meta["gold_rejected"] for meta in metas]
    computed = np.mean([max(meta["p_chosen"], 1 - meta["p_chosen"]) for meta in metas])
    assert 0.76 < computed < 0.86
    assert np.mean(agrees) == pytest.approx(computed, abs=3 * np.sqrt(0.8 * 0.2 / 500))


def test_bad_settings_and_calls():
    for sizes in ((64, 64, 64), (64, 64, 18, 64)):
        with pytest.raises(ConfigError, match="codebooks"):
            Speech(codebooks=sizes)
    with pytest.raises(DataError, match="use train or test"):
        WORLD.sample(1, "valid")
    with pytest.raises(DataError, match="2 prompts and 1 responses"):
        WORLD.measure([PROMPT, PROMPT], [""])


# The corpus

SMALL = Speech(train_pairs=60, test_pairs=30, codebooks=(32, 32, 32, 32))


def test_the_corpus_holds_what_was_asked_for():
    corpus = build(SMALL)
    assert (len(corpus.train), len(corpus.test)) == (60, 30)
    assert corpus.preferences
    assert corpus.metadata.keys() == {*corpus.prompts("train"), *corpus.prompts("test")}
    assert corpus.renderer is not None
    assert corpus.renderer.sizes == (32, 32, 32, 32)
    for pair in corpus.train:
        for stream in (pair.chosen, pair.rejected):
            codes = read_stream(stream, 4)
            assert ((codes >= 0) & (codes < corpus.renderer.sizes)).all()
            assert write_stream(codes) == stream
    audio = corpus.renderer.render([pair.chosen for pair in corpus.train[:3]])
    seconds = [pair.meta["audio_seconds_chosen"] for pair in corpus.train[:3]]
    assert [clip.seconds for clip in audio] == pytest.approx(seconds)
    assert corpus.task(corpus.test[0].prompt).metadata["style"] in STYLES
    # recorded grades are those of the oracle
    measured = corpus.oracle.measure([pair.prompt for pair in corpus.test], [pair.rejected for pair in corpus.test])
    assert measured["gold"].tolist() == [pair.meta["gold_rejected"] for pair in corpus.test]
    assert measured["phone_error"].tolist() == [pair.meta["phone_error_rejected"] for pair in corpus.test]


@pytest.mark.slow
def test_the_fingerprint_follows_the_settings():
    changes = {"seed": 1, "good": 0.5, "temperature": 1.0, "test_voice": 0.5, "codebooks": (32, 32, 32, 64)}
    changed = [replace(SMALL, **{name: value}) for name, value in changes.items()]
    assert len({build(settings).fingerprint for settings in (SMALL, *changed)}) == 6
    assert build(SMALL).fingerprint == build(SMALL).fingerprint


def test_seeds_change_the_clips_and_not_the_codec():
    first, second = build(SMALL), build(replace(SMALL, seed=1))
    assert first.oracle.codec.fingerprint == second.oracle.codec.fingerprint
    assert not {pair.chosen for pair in first.train} & {pair.chosen for pair in second.train}
    more = build(replace(SMALL, train_pairs=70))
    assert [pair.chosen for pair in more.train[:60]] == [pair.chosen for pair in first.train]


def test_documented_numbers_of_the_default_corpus():
    """The numbers in docs/speech/speech_world.md, on the first 500 of its 4,000 pairs; others mean another VERSION."""
    pairs, report = WORLD.sample(500, "train")
    assert report.rows == 500
    train = statistics(pairs)
    assert train["share of clips without a defect"] == pytest.approx(0.25, abs=0.03)
    assert train["gold mean, chosen"] == pytest.approx(3.97, abs=0.1)
    assert train["gold mean, rejected"] == pytest.approx(3.15, abs=0.15)
    assert train["ideal accuracy"] == pytest.approx(0.81, abs=0.02)
    words = [len(pair.chosen.split()) for pair in pairs]
    assert np.mean(words) == pytest.approx(145, abs=4)
