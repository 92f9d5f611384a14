"""Cross-fitted margins at a small size: labels of pure noise, resume, cycles, and the stages that read the margins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, SMALL_WORLD, execute_with_stops, planned

from rlhf_lab.algorithms.pair_selection.crossfit import CrossFitting
from rlhf_lab.algorithms.pair_selection.selection import (
    Margins,
    chosen_pairs,
    label_right,
    read_margins,
    selection_metrics,
    words_difference,
)
from rlhf_lab.algorithms.pair_selection.settings import Selection
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.core.files import read_json
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.training.run import Run

NOISE = (*SMALL_WORLD, *ONE_LAYER, "data.train_pairs=320", "data.annotator.temperature=1e9", "checkpoint.every_steps=0")
NOISE = (*NOISE, "data.seed=2", "seed=2")
HOT = ("algorithm.optimizer=muon", "algorithm.epochs=8", "algorithm.batch_size=16", "algorithm.folds=2")
TINY = (*SMALL_WORLD, *ONE_LAYER)
ADAMW = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3", "algorithm.batch_size=16")


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    stage = planned("sft", *TINY, *ADAMW, f"outputs={tmp_path_factory.mktemp('sft')}")
    execute(stage)
    return Path(stage.model)


def crossfit(policy: Path, out: Path, *overrides: str) -> artifacts.Stage:
    fixed = (*TINY, *ADAMW, "algorithm.folds=3", "algorithm.epochs=2", f"needs.policy={policy}", f"outputs={out}")
    return planned("pair_margins", *fixed, *overrides)


@pytest.fixture(scope="module")
def margins(policy, tmp_path_factory) -> artifacts.Stage:
    stage = crossfit(policy, tmp_path_factory.mktemp("margins"), "checkpoint.every_steps=0")
    execute(stage)
    return stage


def reader(stage: artifacts.Stage, directory: Path, *overrides: str) -> Run:
    """A run that reads the margins of a stage."""
    config = stage.config.replace(data=planned("sft", *TINY, *overrides).config.data)
    return Run(directory, config, {"policy": stage.sources()["policy"], "margins": stage.output})


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> tuple[artifacts.Stage, Margins, Run]:
    """Labels are coin tosses; models of 8 epochs remember them."""
    out = tmp_path_factory.mktemp("noise")
    sft = planned("sft", *NOISE, "algorithm.epochs=0.5", f"outputs={out}")
    execute(sft)
    stage = planned("pair_margins", *NOISE, *HOT, f"needs.policy={sft.model}", f"outputs={out}")
    execute(stage)
    run = Run(out, stage.config, {"policy": sft.model, "margins": stage.output})
    return stage, read_margins(run), run


@pytest.mark.slow
def test_on_noise_the_in_sample_filter_sees_a_gain_that_cross_fitting_does_not(noise):
    """Memorised labels look like accuracy, above all where the model is sure. On held-out rows it is a coin flip."""
    metrics = noise[0].result()["metrics"]
    assert metrics["accuracy/in_sample"]["low"] > 0.6
    assert metrics["accuracy/in_sample/top_half"]["low"] > metrics["accuracy/in_sample"]["mean"] + 0.05
    for name in ("accuracy", "accuracy/top_half", "label_accuracy", "label_accuracy/top_half"):
        assert metrics[name]["low"] < 0.5 < metrics[name]["high"], name


def test_on_noise_kept_pairs_are_right_as_often_as_a_coin_whatever_chose_them(noise):
    """Only its own model sees the gain of the in-sample filter: the labels do not, nor does a held-out model."""
    _, found, run = noise
    prompts = np.array([pair.prompt for pair in run.corpus.train])

    def settings(source: str) -> RewardModel:
        return RewardModel(selection=Selection(by="margin", keep=0.5, source=source))

    for source in ("in_sample", "crossfit"):
        kept = chosen_pairs(settings(source), run)
        assert len(kept) == 160
        right = label_right([run.corpus.train[i] for i in kept])
        truth = clustered_rate(np.where(right == 0.5, np.nan, right), prompts[kept])
        assert truth.low < 0.5 < truth.high
        assert (found.of("crossfit", 0)[kept] > 0).mean() < 0.65
    assert (found.of("in_sample", 0)[chosen_pairs(settings("in_sample"), run)] > 0).mean() > 0.9


def test_a_cycle_on_noise_stays_at_chance(noise, tmp_path):
    """The second cycle's pairs were chosen by models that saw the fold to be scored; by |m|, that gains nothing."""
    first = noise[0]
    more = ("algorithm.selection.by=margin", "algorithm.selection.keep=0.5", f"+needs.margins={first.output}")
    policy = f"needs.policy={first.config.needs['policy']}"
    stage = planned("pair_margins", *NOISE, *HOT, policy, *more, f"outputs={tmp_path}")
    execute(stage)
    metrics = stage.result()["metrics"]
    assert metrics["cycle"] == 2 and metrics["trained_pairs"] == 160
    assert metrics["accuracy"]["low"] < 0.5 and metrics["accuracy"]["mean"] < 0.55
    again = read_margins(Run(tmp_path, stage.config, {"policy": "", "margins": stage.output}))
    assert np.array_equal(again.of("crossfit", 1), noise[1].of("crossfit", 0))
    assert not np.allclose(again.of("crossfit", 2), again.of("crossfit", 1))
    assert np.array_equal(again.of("crossfit", 0), again.of("crossfit", 2))


def test_no_model_trains_on_the_fold_it_scores(margins, tmp_path):
    run = Run(tmp_path, margins.config, margins.sources())
    algorithm = CrossFitting(margins.config.algorithm, run)
    prompts = [pair.prompt for pair in run.corpus.train]
    assert len(algorithm.plans) >= 2
    for fold, plan in enumerate(algorithm.plans):
        trained = {prompts[i] for step in plan for i in step}
        scored = {prompts[i] for i in np.flatnonzero(algorithm.fold_N == fold)}
        assert trained and scored and not trained & scored
        assert {i for step in plan for i in step} == set(np.flatnonzero(algorithm.fold_N != fold).tolist())


def test_margins_are_the_same_after_a_resume(policy, margins, tmp_path, monkeypatch):
    stage = crossfit(policy, tmp_path, "checkpoint.every_steps=2")
    assert stage.key == margins.key
    result = execute_with_stops(monkeypatch, CrossFitting, stage, 3, 6)
    assert (stage.directory / "margins.jsonl").read_text() == (margins.directory / "margins.jsonl").read_text()
    assert any(note.startswith("resumed") for note in result["notes"])


def test_other_pairs_are_refused(margins, tmp_path):
    with pytest.raises(ArtifactError, match="other pairs"):
        read_margins(reader(margins, tmp_path, "data.train_pairs=95"))
    with pytest.raises(ArtifactError, match="other pairs"):  # the same texts with other labels
        read_margins(reader(margins, tmp_path, "data.annotator.length_bias=-3"))
    run = Run(tmp_path, margins.config, {"margins": str(tmp_path)})
    with pytest.raises(ArtifactError, match="algorithm=crossfit"):
        read_margins(run)
    with pytest.raises(ArtifactError, match="1 cycle"):
        chosen_pairs(RewardModel(selection=Selection(by="margin", cycle=2)), reader(margins, tmp_path))


def test_another_split_of_the_folds_is_refused(policy, margins, tmp_path):
    stage = crossfit(policy, tmp_path, f"+needs.margins={margins.output}", "seed=1", "data.seed=0")
    with pytest.raises(ArtifactError, match="other folds"):
        execute(stage)


def test_what_each_choice_keeps(margins, tmp_path):
    run = reader(margins, tmp_path)
    found = read_margins(run)
    margin = found.of("crossfit", 0)

    def kept(by: str, keep: float = 0.5, **more) -> np.ndarray:
        return chosen_pairs(RewardModel(selection=Selection(by=by, keep=keep), **more), run)

    assert kept("all").tolist() == list(range(96))
    sizes = {by: len(kept(by)) for by in ("random", "margin", "agreement", "length_matched")}
    assert set(sizes.values()) == {48}
    for fold in range(3):
        inside = np.flatnonzero(found.fold_N == fold)
        chosen = np.isin(inside, kept("margin"))
        assert np.abs(margin[inside[chosen]]).min() >= np.abs(margin[inside[~chosen]]).max()
        chosen = np.isin(inside, kept("agreement"))
        assert margin[inside[chosen]].min() >= margin[inside[~chosen]].max()
    assert len(kept("all", max_pairs=40)) == 40 and set(kept("all", max_pairs=20)) <= set(kept("all", max_pairs=40))
    assert set(kept("margin", max_pairs=40)) <= set(kept("all", max_pairs=40))
    pairs = [run.corpus.train[i] for i in kept("random")]
    metrics = selection_metrics(pairs)
    assert metrics["selection/pairs"] == 48
    assert metrics["selection/label_accuracy"].mean == pytest.approx(label_right(pairs).mean())
    assert metrics["selection/words"].mean == pytest.approx(words_difference(pairs).mean())


def test_difficulty_keeps_what_can_be_learnt_at_the_runs_beta(margins, tmp_path):
    run = reader(margins, tmp_path)
    found = read_margins(run)
    for beta in (0.01, 1.0):
        settings = DPO(beta=beta, selection=Selection(by="difficulty"))
        expected = np.flatnonzero(found.of("crossfit", 0) + beta * found.ref_gap_N > 0)
        assert chosen_pairs(settings, run).tolist() == expected.tolist()
        few = chosen_pairs(replace(settings, selection=Selection(by="difficulty", keep=0.1)), run)
        assert len(few) == 10 and set(few.tolist()) <= set(expected.tolist())
    impossible = replace(found, crossfit_CN=found.crossfit_CN * 0 - 99)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError, match="lower beta"):
        patch.setattr("rlhf_lab.algorithms.pair_selection.selection.read_margins", lambda run: impossible)
        chosen_pairs(DPO(beta=0.01, selection=Selection(by="difficulty")), run)


@pytest.mark.parametrize("recipe", ["reward_model", "dpo"])
def test_a_stage_trains_on_what_is_chosen_and_says_so(recipe, policy, margins, tmp_path):
    rest = ("needs.reward=null",) if recipe == "dpo" else ("algorithm.on_policy_fraction=0",)
    choice = ("algorithm.selection.by=margin", "algorithm.selection.keep=0.25", "algorithm.max_pairs=80", *rest)
    need = (f"needs.policy={policy}", f"+needs.margins={margins.output}", f"outputs={tmp_path}")
    stage = planned(recipe, *TINY, *ADAMW, "algorithm.epochs=1", *choice, *need)
    execute(stage)
    result = stage.result()
    assert result["metrics"]["selection/pairs"] == 20
    assert any("trains on 20 of 96 corpus pairs: max_pairs=80, selection.by=margin" in note for note in result["notes"])
    steps = read_json(stage.directory / "manifest.json")["needs"]
    assert steps["margins"]["dir"] == margins.output


def test_margins_that_are_not_named_are_asked_for():
    with pytest.raises(ConfigError, match=r"needs\.margins=pair_margins"):
        planned("reward_model", "algorithm.selection.by=margin")
