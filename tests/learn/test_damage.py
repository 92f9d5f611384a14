"""Damaged files are built again where that gives the same, and are refused where it would lose rows."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, Stopped, model_tensors, planned, stop_at

from rlhf_lab.algorithms.preference.dpo_iterative import IteratedDPO
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.evaluations.rescoring import read_responses
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure, execute

COMMON = (*SMALL_WORLD, *ONE_LAYER, "algorithm.lr=3e-3", "checkpoint.every_steps=1", "algorithm.log_every_steps=1")
TRAINED = ("algorithm.optimizer=adamw", "algorithm.batch_size=16")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> dict[str, Path]:
    """Policy and reward model of the stages below."""
    out, needs = tmp_path_factory.mktemp("upstream"), {}
    for role, recipe in (("policy", "sft"), ("reward", "reward_model")):
        more = [f"needs.{name}={path}" for name, path in needs.items()]
        fraction = ["algorithm.on_policy_fraction=0"] if recipe == "reward_model" else []
        stage = planned(recipe, *COMMON, *TRAINED, "algorithm.epochs=1", *fraction, *more, f"outputs={out}")
        execute(stage)
        needs[role] = Path(stage.model)
    return needs


def plan(recipe: str, out: Path, upstream: dict[str, Path], *more: str) -> Stage:
    needs = [f"needs.{role}={path}" for role, path in upstream.items()]
    return planned(recipe, *SMALL_WORLD, *ONE_LAYER, *needs, *more, f"outputs={out}")


def rounds_plan(out: Path, upstream: dict[str, Path]) -> Stage:
    sizes = ("algorithm.prompts_per_round=16", "algorithm.rounds=2", "algorithm.epochs=1", "needs.baseline=null")
    return plan("dpo_iterative", out, upstream, *COMMON[-3:], *TRAINED, *sizes)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def texts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in [*directory.glob("*.jsonl"), *directory.glob("rounds/*")]}


def timeless(text: str) -> list[dict]:
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("evaluation.jsonl", '"policy": "best of 2", "prompt_id": 0', '"policy": "best of 2", "prompt_id": 1'),
        ("policies.jsonl", '"mean": ', '"mean": 1'),
        ("policies.jsonl", '"name": "best of 2"', '"name" "best of 2"'),
        ("evaluation.jsonl", "\n", ""),
    ],
)
def test_an_evaluation_goes_on_after_the_last_policy_that_is_intact(tmp_path, upstream, name, old, new):
    stage = plan("best_of_n", tmp_path, upstream, "algorithm.samples=4")
    execute(stage)
    before, result = texts(stage.directory), read_json(stage.directory / "result.json")
    write_json(stage.directory / "result.json", {"status": "running"})
    edit(stage.directory / name, old, new)
    execute(stage)
    again = read_json(stage.directory / "result.json")
    assert texts(stage.directory) == before
    assert again["policies"] == result["policies"]
    first = 1 if "best of 2" in old else 0
    expected = f"was cut or damaged after policy {first}: the policies after it are evaluated again"
    assert any(expected in note for note in again["notes"])


def test_an_intact_evaluation_is_not_repeated(tmp_path, upstream, monkeypatch):
    stage = plan("best_of_n", tmp_path, upstream, "algorithm.samples=4")
    execute(stage)
    monkeypatch.setattr("rlhf_lab.evaluations.evaluator.Evaluator.sample", None)
    execute(stage)
    assert not any("again" in note for note in read_json(stage.directory / "result.json")["notes"])


@pytest.mark.parametrize("damage", ["cut", "a digit", "gone"])
def test_a_log_that_is_not_what_the_checkpoint_saw_is_refused(tmp_path, upstream, monkeypatch, damage):
    stage = rounds_plan(tmp_path, upstream)
    stop_at(monkeypatch, IteratedDPO, 1)
    with pytest.raises(Stopped):
        execute(stage)
    stop_at(monkeypatch, IteratedDPO, None)
    log = stage.directory / "metrics.jsonl"
    full = log.read_bytes()
    if damage == "gone":
        log.unlink()
    else:
        log.write_bytes(full[:20] if damage == "cut" else full.replace(b'"step": 1', b'"step": 7', 1))
    with pytest.raises(ArtifactError, match=r"metrics\.jsonl is damaged.*Restore the file from a copy, or delete"):
        ensure(stage, time.time())
    assert (stage.directory / "checkpoint.pt").exists()
    log.write_bytes(full)
    assert any(note.startswith("resumed at step 1") for note in ensure(stage, time.time())["notes"])


@pytest.mark.slow
def test_a_round_is_made_again_until_the_policy_has_trained_on_it(tmp_path, upstream, monkeypatch):
    full, cut = rounds_plan(tmp_path / "whole", upstream), rounds_plan(tmp_path / "cut", upstream)
    execute(full)
    stop_at(monkeypatch, IteratedDPO, 1)
    with pytest.raises(Stopped):
        execute(cut)
    stop_at(monkeypatch, IteratedDPO, None)
    shutil.copy(full.directory / "rounds" / "round_2.json", cut.directory / "rounds")
    edit(cut.directory / "rounds" / "round_2.json", '"reward_best": ', '"reward_best": 1')
    kept = (cut.directory / "rounds" / "round_1.json").read_text()
    edit(cut.directory / "rounds" / "round_1.json", '"reward_best": ', '"reward_best": 1')
    with pytest.raises(ArtifactError, match=r"round_1\.json is damaged, and the policy has trained on its pairs"):
        execute(cut)
    (cut.directory / "rounds" / "round_1.json").write_text(kept)
    execute(cut)
    assert any("round_2.json was damaged" in note for note in read_json(cut.directory / "result.json")["notes"])
    one, other = model_tensors(Path(full.model)), model_tensors(Path(cut.model))
    assert all(one[name].equal(other[name]) for name in one)
    assert timeless(texts(full.directory)["metrics.jsonl"]) == timeless(texts(cut.directory)["metrics.jsonl"])


def test_a_completed_stage_is_not_built_over(tmp_path, upstream):
    """Neither where its result cannot be read nor where its model is not what it was."""
    stage = plan("best_of_n", tmp_path, upstream, "algorithm.samples=2")
    execute(stage)
    (stage.directory / "result.json").write_text('{"status": "compl')
    with pytest.raises(ArtifactError, match=r"result\.json \(17 bytes\) has changed"):
        ensure(stage, time.time())
    assert (stage.directory / "evaluation.jsonl").exists()
    shutil.rmtree(stage.directory)  # the remedy
    assert ensure(stage, time.time())["status"] == "completed"


def test_a_kill_after_the_result_leaves_a_complete_stage(tmp_path, upstream):
    stage = rounds_plan(tmp_path, upstream)
    execute(stage)
    (stage.directory / "checkpoint.pt").write_text("of the last step")
    before = (stage.directory / "result.json").stat().st_mtime_ns
    assert ensure(stage, time.time())["status"] == "completed"
    assert (stage.directory / "result.json").stat().st_mtime_ns == before
    assert not (stage.directory / "checkpoint.pt").exists()


def test_saved_replies_and_a_model_of_another_store_are_checked_too(tmp_path, upstream):
    """A model named by its directory is not a stage of the command."""
    stage = plan("best_of_n", tmp_path / "one", upstream, "algorithm.samples=2")
    execute(stage)
    edit(stage.directory / "evaluation.jsonl", '"proxy": ', '"proxy": 1')
    with pytest.raises(ArtifactError, match=r"evaluation\.jsonl .* has changed"):
        read_responses(stage.directory)
    store = tmp_path / "two"
    shutil.copytree(upstream["policy"].parent, store)
    (store / "model" / "generation_config.json").write_text("{}")
    changed = plan("best_of_n", tmp_path / "three", {**upstream, "policy": store / "model"}, "algorithm.samples=2")
    with pytest.raises(ArtifactError, match=r"generation_config\.json .* has changed"):
        ensure(changed, time.time())
