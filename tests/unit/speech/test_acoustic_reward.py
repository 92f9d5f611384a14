"""Acoustic reward models on features that are written out: loss, scale, which features are kept, what is saved."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import planned

from rlhf_lab.core.errors import ConfigError, DataError, NumericError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.packs.speech.reward_models import clip_pairs
from rlhf_lab.packs.speech.reward_models.acoustic_reward import AcousticRewardModelling, build
from rlhf_lab.packs.speech.reward_models.clip_pairs import validated, wins
from rlhf_lab.packs.speech.reward_models.pair_training import epoch_batches, train_on_pairs
from rlhf_lab.packs.speech.reward_models.settings import AcousticReward
from rlhf_lab.packs.speech.rewards.acoustic_rm import MODEL_FILE, FeatureModel, Standardiser, new_network, weighted_sum
from rlhf_lab.packs.speech.rewards.settings import FEATURES, HAND_WEIGHTS, SILENT, HandWeighted
from rlhf_lab.packs.speech.sound.features import NAMES
from rlhf_lab.stages.execute import execute
from rlhf_lab.statistics.estimates import Estimate

SILENCE = [np.nan, np.nan, 0.0, np.nan, np.nan, np.nan, 1.0]
"""Features of a clip in which nothing sounds."""


def clips(count, seed=0):
    """Features of clips with sound, (N, 7): normal, with the scale of each feature."""
    values_N7 = np.random.default_rng(seed).standard_normal((count, 7)) * [1, 5, 0.1, 2, 0.05, 300, 0.05]
    return values_N7 + np.array([3, 10, 0.6, 6, 0.4, 1500, 0.1])


def test_the_names_of_the_settings_are_those_of_the_features():
    assert FEATURES == NAMES
    assert sum(HAND_WEIGHTS.values()) == pytest.approx(1)


def test_loss_and_first_step_against_a_reference_by_hand():
    """Loss: mean of log(1 + e^(−w·d)); its gradient: −mean of σ(−w·d)·d; AdamW's first step is lr against its sign."""
    inputs_P2F = np.random.default_rng(1).standard_normal((9, 2, 3))
    network = new_network(3, 0, seed=4)
    weights_F = network[0].weight.detach().numpy()[0].copy()
    difference_PF = inputs_P2F[:, 0] - inputs_P2F[:, 1]
    margin_P = difference_PF @ weights_F
    loss = np.log1p(np.exp(-margin_P)).mean()
    gradient_F = -(difference_PF / (1 + np.exp(margin_P))[:, None]).mean(axis=0)
    rows = torch.from_numpy(inputs_P2F)
    logged = []

    def scores(indices):
        return network(rows[list(indices)]).squeeze(-1).unbind(1)

    settings = AcousticReward(epochs=1, batch_size=9, weight_decay=0.0)
    parameters = [{"params": list(network.parameters()), "lr": 0.01}]
    train_on_pairs(scores, parameters, settings, 9, seed=0, log=lambda *row: logged.append(row), title="test")
    assert logged == [(1, pytest.approx(loss, abs=1e-12), pytest.approx((margin_P > 0).mean()))]
    stepped_F = network[0].weight.detach().numpy()[0]
    assert stepped_F == pytest.approx(weights_F - 0.01 * np.sign(gradient_F), abs=1e-7)


def test_a_diverged_loss_ends_training():
    parameter = torch.nn.Parameter(torch.tensor(float("nan")))
    settings = AcousticReward(epochs=1, batch_size=2)
    diverged = lambda indices: (parameter * torch.ones(2), torch.ones(2))  # noqa: E731
    with pytest.raises(NumericError, match=r"lower algorithm\.lr"):
        train_on_pairs(diverged, [{"params": [parameter]}], settings, 2, seed=0, log=print, title="test")


def test_every_pass_takes_every_pair_once():
    batches = epoch_batches(5, 2.4, 2, seed=0)
    order = [i for batch in batches for i in batch]
    assert sorted(order[:5]) == sorted(order[5:10]) == [0, 1, 2, 3, 4]
    assert len(order) == 12
    assert order[:5] != order[5:10]
    assert max(map(len, batches)) == 2


def test_features_are_standardised_on_clips_that_sound():
    rows_N7 = np.vstack([clips(400), [SILENCE, SILENCE]])
    standardiser = Standardiser.fit(rows_N7, ["hnr", "pitch_sd"])
    values_N2 = standardiser(rows_N7[:400])
    assert values_N2.mean(axis=0) == pytest.approx([0, 0], abs=1e-12)
    assert values_N2.std(axis=0) == pytest.approx([1, 1], abs=1e-12)
    by_hand = (rows_N7[0, 1] - rows_N7[:400, 1].mean()) / rows_N7[:400, 1].std()
    assert values_N2[0, 0] == pytest.approx(by_hand)
    # unvoiced: the lowest HNR that a clip can have, −1 dB, and no pitch movement
    unvoiced_N7 = np.array([[np.nan, np.nan, 0.0, 5.0, 0.4, 1500.0, 0.1]])
    lowest = (np.array([-1.0, 0.0]) - rows_N7[:400, [1, 0]].mean(axis=0)) / rows_N7[:400, [1, 0]].std(axis=0)
    assert standardiser(unvoiced_N7)[0] == pytest.approx(lowest)


def test_a_feature_that_does_not_vary_stays_0_and_silence_alone_is_refused():
    rows_N7 = clips(10)
    rows_N7[:, 3] = 5.0
    assert Standardiser.fit(rows_N7, ["energy_dynamics"])(rows_N7).tolist() == [[0.0]] * 10
    with pytest.raises(ConfigError, match="0 of 2 training clips have sound"):
        Standardiser.fit(np.array([SILENCE, SILENCE]), ["hnr"])


def test_the_hand_weighted_sum_by_hand():
    rows_N7 = clips(50)
    model = weighted_sum(Standardiser.fit(rows_N7, ["pitch_sd", "hnr"]), {"pitch_sd": 0.3, "hnr": -0.25})
    standard_N7 = (rows_N7 - rows_N7.mean(axis=0)) / rows_N7.std(axis=0)
    assert model.outputs(rows_N7) == pytest.approx(0.3 * standard_N7[:, 0] - 0.25 * standard_N7[:, 1])
    scaled = model.with_scale(rows_N7)(np.vstack([rows_N7, [SILENCE]]), silent=-7.0)
    assert scaled[:50].mean() == pytest.approx(0, abs=1e-12)
    assert scaled[:50].std() == pytest.approx(1)
    assert scaled[50] == -7


def test_a_saved_model_scores_alike(tmp_path):
    rows_N7 = clips(30)
    standardiser = Standardiser.fit(rows_N7, ["silence_fraction", "hnr", "pitch_sd"])
    model = FeatureModel(standardiser, new_network(3, 8, seed=3)).with_scale(rows_N7)
    model.save(tmp_path, {"validated_by": "gold"})
    loaded = FeatureModel.load(tmp_path, "acoustic_rm")
    assert loaded(rows_N7, SILENT).tolist() == model(rows_N7, SILENT).tolist()
    assert json.loads((tmp_path / MODEL_FILE).read_text())["features"] == ["silence_fraction", "hnr", "pitch_sd"]
    with pytest.raises(ConfigError, match=r"needs\.acoustic_rm=.* has no acoustic_reward\.json"):
        FeatureModel.load(tmp_path / "elsewhere", "acoustic_rm")


def rho(value):
    return Estimate(value, value - 0.1, value + 0.1, 10, 10)


def test_features_are_validated_by_their_correlation_with_its_sign():
    correlations = {"a": rho(0.3), "b": rho(-0.4), "c": rho(0.1), "d": rho(float("nan")), "e": rho(0.2)}
    assert validated(correlations, 0.1) == ["a", "e"]
    assert validated(correlations, 0.9) == ["a"]  # none exceeds it: the largest


def test_a_pair_is_won_by_the_higher_value_and_without_a_value_neither_won_nor_lost():
    assert wins(np.array([2.0, 1.0, 1.0, 2.0, 1.0, 1.0])).tolist() == [1, 0, 0]
    assert np.isnan(wins(np.array([np.nan, 1.0, 2.0, np.nan]))).all()


@pytest.fixture
def make_run(monkeypatch, tmp_path):
    """A run whose clips are lines of seven numbers; the truth is the first of them, and the listener errs at random."""

    def features_of(renderer, responses, title=""):
        return np.array([[float(number) for number in response.split()] for response in responses])

    monkeypatch.setattr(clip_pairs, "features_of", features_of)

    def make(name, truth_sign=1.0):
        splits = {}
        for split, count, seed in (("train", 300, 1), ("test", 200, 2)):
            rng = np.random.default_rng(seed)
            rows = clips(2 * count, seed).reshape(count, 2, 7)
            pairs = []
            for i, sides in enumerate(rows):
                gap = sides[0, 0] - sides[1, 0]
                ordered = sides if rng.random() < 1 / (1 + np.exp(-3 * gap)) else sides[::-1]
                texts = [" ".join(map(repr, side.tolist())) for side in ordered]
                gold = {"gold_chosen": truth_sign * ordered[0][0], "gold_rejected": truth_sign * ordered[1][0]}
                pairs.append(Pair(f"{split} {i // 2}", *texts, gold))
            splits[split] = pairs
        corpus = Corpus("toy", splits["train"], splits["test"], "", renderer=SimpleNamespace(sizes=(8,)))
        directory = tmp_path / name
        directory.mkdir()
        run = SimpleNamespace(data=corpus, directory=directory, notes=[], logged=[], seed=lambda purpose: 5)
        run.note, run.log = run.notes.append, lambda step, **row: run.logged.append(row)
        return run

    return make


@pytest.mark.slow
def test_features_that_are_noise_are_found_and_left_out(make_run):
    run = make_run("validated")
    result = build(AcousticReward(features="validated", min_spearman=0.12), run).finish()
    metrics = result.metrics
    assert [name for name in FEATURES if metrics[f"kept/{name}"]] == ["pitch_sd"]
    assert metrics["features_kept"] == 1
    assert metrics["accuracy"].mean == metrics["accuracy/validated"].mean
    assert metrics["accuracy"].mean > 0.8
    assert metrics["accuracy"].mean == pytest.approx(metrics["accuracy/truth"].mean, abs=0.02)
    assert metrics["spearman"].mean > 0.99
    assert metrics["spearman/all"].mean < metrics["spearman/validated"].mean
    assert metrics["feature_spearman/pitch_sd"].mean == pytest.approx(1)
    assert abs(metrics["feature_spearman/hnr"].mean) < 0.12
    # what is lost without a feature: all of it without the one that matters, nothing without another
    assert metrics["feature_gain/pitch_sd"].low > 0.2
    assert abs(metrics["feature_gain/spectral_centroid"].mean) < 0.06
    assert metrics["accuracy/hand"].mean < metrics["accuracy"].mean
    losses = [row["loss"] for row in run.logged]
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    saved = json.loads((run.directory / MODEL_FILE).read_text())
    assert saved["features"] == ["pitch_sd"]
    assert saved["validated_by"] == "gold"


def test_the_truth_is_no_part_of_training(make_run):
    """With the opposite gold, the model is the same to the last bit."""
    models = []
    for name, sign in (("right", 1.0), ("opposite", -1.0)):
        run = make_run(name, sign)
        result = build(AcousticReward(features="all", epochs=2), run).finish()
        assert np.sign(result.metrics["spearman"].mean) == sign
        models.append(FeatureModel.load(run.directory, "acoustic_rm"))
    assert models[0](clips(20), SILENT).tolist() == models[1](clips(20), SILENT).tolist()


@pytest.mark.slow
def test_hand_weights_are_a_model_too(make_run):
    run = make_run("hand")
    metrics = build(AcousticReward(features="hand"), run).finish().metrics
    assert metrics["accuracy"].mean == metrics["accuracy/hand"].mean
    assert run.logged == []


def test_opinion_scores_of_a_predictor_stand_for_gold(make_run, tmp_path):
    run = make_run("mos")
    file = tmp_path / "mos.py"
    file.write_text("def predict(clips):\n    return [clip.seconds for clip in clips]\n")
    run.data.renderer.render = lambda responses: [
        SimpleNamespace(seconds=float(response.split()[1])) for response in responses
    ]
    settings = AcousticReward(mos=f"{file}:predict", epochs=2)
    metrics = build(settings, run).finish().metrics
    assert metrics["feature_spearman/hnr"].mean == pytest.approx(1)
    assert settings.contents()["mos"] != AcousticReward(mos=f"{file}:other").mos


def test_clips_that_a_predictor_leaves_out_do_not_count(make_run, tmp_path):
    """The predictor prefers each chosen clip. It leaves out the first clip of each split, then all clips."""
    run = make_run("some")
    file = tmp_path / "some.py"
    file.write_text("def predict(clips):\n    return [clip.score for clip in clips]\n")
    known = lambda i: i > 0  # noqa: E731
    run.data.renderer.render = lambda responses: [
        SimpleNamespace(score=-float(i % 2) if known(i) else None) for i, _ in enumerate(responses)
    ]
    settings = AcousticReward(mos=f"{file}:predict", epochs=1)
    truth = build(settings, run).finish().metrics["accuracy/truth"]
    assert (truth.mean, truth.n, truth.unscored) == (1.0, 199, 1)
    known = lambda i: False  # noqa: E731
    with pytest.raises(DataError, match="scored none of the 600 training clips; return a number for each clip"):
        build(settings, run)


def test_columns_of_the_pairs_stand_for_gold_and_without_any_nobody_validates(make_run):
    run = make_run("columns")
    for pairs in (run.data.train, run.data.test):
        for i, pair in enumerate(pairs):
            grades = {"mos_chosen": float(pair.chosen.split()[2]), "mos_rejected": float(pair.rejected.split()[2])}
            pairs[i] = Pair(pair.prompt, pair.chosen, pair.rejected, grades)
    metrics = build(AcousticReward(epochs=1), run).finish().metrics
    assert metrics["feature_spearman/voiced_fraction"].mean == pytest.approx(1)
    for pairs in (run.data.train, run.data.test):
        pairs[:] = [Pair(pair.prompt, pair.chosen, pair.rejected) for pair in pairs]
    metrics = build(AcousticReward(epochs=1), run).finish().metrics
    assert not [name for name in metrics if "spearman" in name or name == "accuracy/truth"]
    assert "accuracy/all" in metrics


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"features": "best"}, "features=best is not one of all, five, validated, hand"),
        ({"features": ("hnr", "jitter")}, "features: jitter is not one of"),
        ({"mos": "predictor"}, "write FILE.py:FUNCTION"),
    ],
)
def test_settings_that_are_wrong(settings, problem):
    with pytest.raises(ConfigError, match=problem.replace(".", r"\.")):
        AcousticReward(**settings)
    with pytest.raises(ConfigError, match="jitter is not one of pitch_sd"):
        HandWeighted(weights={"jitter": 1.0})
    with pytest.raises(ConfigError, match="all 0"):
        HandWeighted(weights={"hnr": 0.0})


def test_a_stage_that_was_interrupted_logs_each_row_once(tmp_path, monkeypatch):
    """Three epochs are three rows. The first attempt ends behind the second of them, and training begins anew."""

    def measured(renderer, responses, title):
        return clips(len(responses), seed=len(responses))

    monkeypatch.setattr(clip_pairs, "features_of", measured)
    sizes = ("data.train_pairs=24", "data.test_pairs=8", "algorithm.epochs=3", "algorithm.batch_size=8")
    stage = planned("tts_reward", *sizes, f"outputs={tmp_path}")
    log = AcousticRewardModelling._log

    def interrupted(self, step, loss, accuracy):
        log(self, step, loss, accuracy)
        if step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(AcousticRewardModelling, "_log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(stage)
    first = read_jsonl(stage.directory / "metrics.jsonl")
    assert [row["step"] for row in first] == [3, 6]
    monkeypatch.setattr(AcousticRewardModelling, "_log", log)
    execute(stage)
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert [row["loss"] for row in rows[:2]] == [row["loss"] for row in first]
