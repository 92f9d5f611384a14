"""A run that was interrupted and resumed ends bit for bit where an uninterrupted one ends."""

from __future__ import annotations

import json
import signal
from importlib import import_module
from pathlib import Path

import pytest
import torch
from support import (
    ONE_LAYER,
    SMALL_WORLD,
    Stopped,
    assert_equal_models,
    execute_with_stops,
    model_tensors,
    planned,
    stop_at,
)

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import Interrupted

CLASSES = {
    "sft": "SupervisedFineTuning",
    "reward_model": "RewardModelling",
    "rubric_rm": "RubricModelling",
    "dpo": "OnePassDPO",
    "dpo_iterative": "IteratedDPO",
    "ppo": "ProximalPolicyOptimisation",
    "grpo": "GroupPolicyOptimisation",
}
COMMON = ("algorithm.epochs=2", "algorithm.batch_size=16", "algorithm.lr=3e-3", "algorithm.muon_lr=5e-3")
SIZES = {
    "sft": ("algorithm.optimizer=muon", "algorithm.skip_garbled=false", "algorithm.eval_every_steps=4"),
    "reward_model": ("algorithm.optimizer=muon", "algorithm.on_policy_fraction=0.2"),
    "rubric_rm": ("algorithm.optimizer=muon", "algorithm.on_policy_fraction=0.2", "algorithm.target=attributes"),
    "dpo": ("algorithm.optimizer=adamw", "algorithm.eval_every_steps=3"),
    "dpo_iterative": (
        *("algorithm.optimizer=adamw", "algorithm.prompts_per_round=32", "algorithm.corpus_fraction=0.33"),
        *("algorithm.rounds=2", "algorithm.buffer=full", "needs.baseline=null"),
    ),
    "ppo": (
        *("algorithm.optimizer=adamw", "algorithm.iterations=3", "algorithm.prompts_per_iteration=32"),
        *("algorithm.critic_warmup=1", "algorithm.kl_controller=adaptive", "algorithm.reward_scaling=running_sd"),
        *("algorithm.target_kl=0.002", "algorithm.ptx_weight=0.1", "algorithm.eval_every_steps=6"),
    ),
    "grpo": (
        *("algorithm.optimizer=adamw", "algorithm.iterations=3", "algorithm.prompts_per_iteration=8"),
        *("algorithm.group_size=4", "algorithm.dynamic_sampling=1", "algorithm.reward_scaling=running_sd"),
    ),
}
"""96 pairs: 12 steps for sft and dpo, about 14 for the reward model; iterative dpo takes 3 in each of 2 rounds;
ppo and grpo take 4 in each of 3 iterations."""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> dict[str, Path]:
    """Policy and reward model that the later stages start from."""
    out = tmp_path_factory.mktemp("upstream")
    needs: dict[str, Path] = {}
    for role, recipe in (("policy", "sft"), ("reward", "reward_model")):
        stage = plan(recipe, out, needs)
        execute(stage)
        needs[role] = Path(stage.model)
    return needs


def plan(recipe: str, out: Path, upstream: dict[str, Path], every: int = 0, *, background: bool = False) -> Stage:
    roles = {"sft": (), "reward_model": ("policy",), "rubric_rm": ("policy",)}.get(recipe, ("policy", "reward"))
    needs = [f"needs.{role}={upstream[role]}" for role in roles]
    common = (*SMALL_WORLD, *ONE_LAYER, *COMMON, *SIZES[recipe], *needs)
    checkpoints = (f"checkpoint.every_steps={every}", f"checkpoint.background={background}")
    return planned(recipe, *common, f"outputs={out}", *checkpoints, "algorithm.log_every_steps=3")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, upstream) -> dict[str, Stage]:
    stages = {recipe: plan(recipe, tmp_path_factory.mktemp(recipe), upstream) for recipe in CLASSES}
    for stage in stages.values():
        execute(stage)
    return stages


def algorithm(recipe: str) -> type:
    return getattr(import_module(registry.implementation("algorithm", recipe)), CLASSES[recipe])


def logged(stage: Stage) -> list[str]:
    """Rows of metrics.jsonl as text, without the time."""
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    return [json.dumps({key: value for key, value in row.items() if key != "time"}) for row in rows]


def assert_same(one: Stage, other: Stage) -> None:
    assert_equal_models(one, other)
    first, second = (read_json(stage.directory / "result.json") for stage in (one, other))
    assert second["status"] == "completed"
    assert first["metrics"] == second["metrics"]
    assert first["policies"] == second["policies"]
    assert logged(one) == logged(other)
    for name in ("evaluation.jsonl", "rounds/round_2.json"):
        files = [stage.directory / name for stage in (one, other)]
        assert files[0].exists() == files[1].exists()
        assert not files[0].exists() or files[0].read_text() == files[1].read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "stops"),
    [
        ("sft", (0, 2, 9, 11)),
        ("reward_model", (5,)),
        ("rubric_rm", (1, 5)),
        ("dpo", (1, 3, 7)),
        ("dpo_iterative", (3,)),  # the second round's pairs are made, none is trained on
        ("dpo_iterative", (0, 2, 3, 5)),
        ("ppo", (6,)),  # within an iteration: what it trains on comes from the checkpoint
        ("ppo", (1, 4, 8, 11)),
        ("grpo", (6,)),
        ("grpo", (3, 4, 10)),
    ],
)
def test_resumed_equals_uninterrupted(recipe, stops, tmp_path, upstream, uninterrupted, monkeypatch):
    stage = plan(recipe, tmp_path, upstream, every=2, background=len(stops) > 1)
    assert stage.key == uninterrupted[recipe].key
    result = execute_with_stops(monkeypatch, algorithm(recipe), stage, *stops)
    assert_same(uninterrupted[recipe], stage)
    assert any(note.startswith("resumed at step") for note in result["notes"])
    assert not (stage.directory / "checkpoint.pt").exists()


def signal_at(monkeypatch, algorithm: type, at: int) -> None:
    """SIGTERM once the samples of step `at` are made."""
    monkeypatch.undo()
    collect = algorithm.collect  # type: ignore[attr-defined]

    def signalled(self, step: int):
        if step == at:
            signal.raise_signal(signal.SIGTERM)
        return collect(self, step)

    monkeypatch.setattr(algorithm, "collect", signalled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "stops"), [("sft", (0, 3, 6, 11)), ("reward_model", (4,)), ("ppo", (0, 4, 9)), ("grpo", (4, 6))]
)
def test_a_stop_between_two_logged_steps_leaves_no_trace(recipe, stops, tmp_path, upstream, uninterrupted, monkeypatch):
    """Rows are logged every third step; what was counted since the last one is in the checkpoint."""
    stage = plan(recipe, tmp_path, upstream)
    for stop in stops:
        signal_at(monkeypatch, algorithm(recipe), stop)
        with pytest.raises(Interrupted, match=f"stopped after step {stop + 1} of"):
            execute(stage)
    monkeypatch.undo()
    execute(stage)
    assert_same(uninterrupted[recipe], stage)


def test_a_damaged_checkpoint_starts_over_and_says_so(tmp_path, upstream, uninterrupted, monkeypatch):
    stage = plan("sft", tmp_path, upstream, every=2)
    stop_at(monkeypatch, algorithm("sft"), 7)
    with pytest.raises(Stopped):
        execute(stage)
    path = stage.directory / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-2000])
    stop_at(monkeypatch, algorithm("sft"), None)
    execute(stage)
    assert_same(uninterrupted["sft"], stage)
    assert any(note.startswith("started over") for note in read_json(stage.directory / "result.json")["notes"])


def test_the_seed_decides_the_run(tmp_path, uninterrupted):
    """Another seed ends elsewhere, so equality above is not the equality of constants."""
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, *COMMON, *SIZES["sft"], "seed=1", f"outputs={tmp_path}")
    execute(stage)
    a, b = model_tensors(Path(stage.model)), model_tensors(Path(uninterrupted["sft"].model))
    assert any(not torch.equal(a[name], b[name]) for name in a)
