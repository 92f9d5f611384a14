"""Pairs of a policy's clips: the prompts, the ranking, the corpus that is written, and what reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, planned

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.data.generated import read_generated
from rlhf_lab.packs.speech.reward_models import tts_preferences
from rlhf_lab.packs.speech.reward_models.settings import TTSPreferences
from rlhf_lab.packs.speech.reward_models.tts_preferences import ClipPreferences, best_and_worst
from rlhf_lab.packs.speech.world.delivery import Delivery
from rlhf_lab.packs.speech.world.english import HELD_OUT, TEXTS
from rlhf_lab.packs.speech.world.prompts import CATEGORIES, STYLES, read_prompt
from rlhf_lab.packs.speech.world.settings import EspeakData


@pytest.fixture(scope="module")
def corpus():
    settings = checked("tts_sft", "data=speech_small").data
    return registry.build("data", replace(settings, train_pairs=4, test_pairs=4))


def test_thirty_sentences_in_six_categories_and_six_styles(corpus):
    prompts = corpus.oracle.prompt_grid(5, seed=3)
    utterances = [read_prompt(prompt) for prompt in prompts]
    assert len(set(prompts)) == 180 and len({utterance.text for utterance in utterances}) == 30
    for category in CATEGORIES:
        own = [utterance for utterance in utterances if utterance.category == category]
        assert len(own) == 30 and len({utterance.text for utterance in own}) == 5
        assert {utterance.style for utterance in own} == set(STYLES)
    # each sentence has one voice, and none is held out
    assert len({(utterance.text, utterance.voice) for utterance in utterances}) == 30
    assert {utterance.split for utterance in utterances} == {"train"}
    assert corpus.oracle.prompt_grid(5, seed=3) == prompts != corpus.oracle.prompt_grid(5, seed=4)


def test_a_category_with_fewer_sentences_is_named(corpus, monkeypatch):
    utterance = read_prompt(corpus.oracle.prompt_grid(1, seed=0)[0])
    monkeypatch.setattr(corpus.oracle, "_draw", lambda rng, split: (utterance, (Delivery(), Delivery())))
    with pytest.raises(
        DataError, match=f"2 texts of each category are needed, but training has 1 of {utterance.category}"
    ):
        corpus.oracle.prompt_grid(2, seed=0)


def test_more_sentences_than_the_data_have_are_refused_before_anything_is_built():
    """data=espeak has five texts of each category, one of them held out; the default of the recipe is five."""
    options = ("data=espeak", "reward=acoustic", "needs.acoustic_rm=null", "needs.recogniser=null")
    with pytest.raises(ConfigError, match=r"texts_per_category=5: data=espeak has 4 .*; set algorithm.*=4"):
        checked("tts_preferences", *options)
    assert checked("tts_preferences", *options, "algorithm.texts_per_category=4").algorithm.texts_per_category == 4
    assert {len(set(texts) - HELD_OUT) for texts in TEXTS.values()} == {EspeakData.texts_per_category}


def test_the_best_and_the_worst_by_score():
    """Scores 1, NaN, 3, 2: the third clip is chosen and the first rejected; the unscored one is not ranked."""
    gold = {"gold": np.array([5.0, 0.0, -1.0, 2.0])}
    row = best_and_worst(["a", "b", "c", "d"], np.array([1.0, np.nan, 3.0, 2.0]), gold)
    assert row == {
        **{"problem": None, "chosen": "c", "rejected": "a", "score_chosen": 3.0, "score_rejected": 1.0},
        **{"gold_chosen": -1.0, "gold_rejected": 5.0, "scores": [3.0, 2.0, 1.0]},
    }


@pytest.mark.parametrize(
    ("clips", "scores", "problem"),
    [
        (["a", "b"], [2.0, 2.0], "equal scores"),
        (["a", "b"], [np.nan, np.nan], "fewer than two scored clips"),
        (["a", "b"], [np.nan, 1.0], "fewer than two scored clips"),
        (["a", "a"], [1.0, 2.0], "identical clips"),
    ],
)
def test_prompts_without_a_pair(clips, scores, problem):
    row = best_and_worst(clips, np.array(scores), {})
    assert row["problem"] == problem and "chosen" not in row


@pytest.fixture
def finished(corpus, monkeypatch, tmp_path):
    """A stage whose policy says each prompt well, breathlessly fast and not at all, and whose reward is gold."""
    world = corpus.oracle

    def sample(prompts, group, purpose):
        takes = [world.say(prompt) for prompt in prompts], ["no stream"] * len(prompts)
        return [*takes, takes[1]][:group]

    monkeypatch.setattr(tts_preferences, "PolicyResponses", lambda run: SimpleNamespace(sample=sample))

    def reward(episodes):
        # the row of a new prompt is known, as a guard of intelligibility needs it
        assert all(episode.task.metadata["text"] for episode in episodes)
        return RewardBatch(world.measure([e.prompt for e in episodes], [e.response for e in episodes])["gold"])

    monkeypatch.setattr(tts_preferences, "build_reward", lambda run: reward)
    config = SimpleNamespace(needs={"policy": "tts_sft"}, reward=SimpleNamespace(terms={"acoustic": None}))
    run = SimpleNamespace(data=corpus, directory=tmp_path, config=config, needs={"policy": "x"}, seed=lambda purpose: 5)
    stage = ClipPreferences(TTSPreferences(texts_per_category=1, samples=3), run)
    return stage.finish(), tmp_path


def test_pairs_are_written_with_their_scores_and_truth(finished):
    result, directory = finished
    metrics = result.metrics
    assert metrics["made/items"] == metrics["made/rows"] == 36
    assert metrics["made/label_agreement"].mean == 1  # gold ranked them
    assert metrics["made/label_agreement/question"].mean == metrics["made/label_agreement/calm"].mean == 1
    assert metrics["made/score_gap"].mean == pytest.approx(
        metrics["made/gold"].mean - metrics["made/gold_rejected"].mean
    )
    assert set(result.primary) <= set(metrics)
    pairs = read_generated(directory, "pairs")
    assert len(pairs) == 36 and {pair.rejected for pair in pairs} == {"no stream"}
    assert pairs[0].meta["gold_chosen"] > pairs[0].meta["gold_rejected"] == -5
    assert pairs[0].meta["garble_rejected"] == 1
    row = json.loads((directory / "corpus.jsonl").read_text().splitlines()[0])
    assert (row["sentence"], row["style"]) == ("statement", "neutral") and len(row["scores"]) == 3
    header = json.loads((directory / "corpus.json").read_text())
    assert header["ranked_by"] == ["acoustic"] and header["upstream"] == {"policy": "tts_sft"}


def test_data_without_a_speech_world_are_refused():
    run = SimpleNamespace(data=Corpus("mini", [], [], ""))
    with pytest.raises(ConfigError, match="needs the prompts of a speech world, which data=mini does not have"):
        ClipPreferences(TTSPreferences(), run)
    with pytest.raises(ConfigError, match="algorithm=tts_preferences needs responses that are audio"):
        checked("sft", "algorithm=tts_preferences", "+needs.policy=sft")


def test_the_recipe_feeds_preference_training():
    stage = planned("tts_preferences")
    assert {role: need.kind for role, need in stage.needs.items()} == {
        "policy": "sft",
        "acoustic_rm": "acoustic_reward",
        "recogniser": "recogniser",
    }
    speech = ["data=speech", "model=codec", "reward=acoustic", "needs.reward=null", "needs.policy=tts_sft"]
    trained = planned("dpo", *speech, "+needs.corpus=tts_preferences")
    assert trained.needs["corpus"].kind == "tts_preferences"
    ranked_by_mos = planned("tts_preferences", "reward=dnsmos", "needs.acoustic_rm=null", "needs.recogniser=null")
    assert set(ranked_by_mos.needs) == {"policy"}
