"""Each variant of the reward model learns what it is for from planted data, and scores the same after saving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ONE_LAYER, execute_with_stops, planned, prompt_text, toy_rows

from rlhf_lab.algorithms.reward_models.reward_model import RewardModelling
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.rewards.learned.bt import AVERAGE_FILE, SCALE_FILE, ScoreScale
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

FIXED = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "checkpoint.every_steps=0")
SIZE = ("algorithm.lr=1e-2", "algorithm.epochs=4", "rollout.max_new_tokens=12")


def modelled(toy: tuple[Path, Path], out: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    """(model directory, metrics) of a reward model of the toy pairs."""
    data, policy = toy
    common = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", *FIXED, *SIZE, f"outputs={out}")
    stage = planned("reward_model", *common, *overrides)
    return Path(stage.model), execute(stage)["metrics"]


def loaded(toy: tuple[Path, Path], model: Path, *overrides: str) -> Any:
    """The saved model as a reward term."""
    data, policy = toy
    needs = (f"needs.policy={policy}", f"needs.reward={model}")
    config = planned("dpo", "data=pairs", f"data.path={data}", *needs, *overrides).config
    run = Run(model, config, {"policy": str(policy), "reward": str(model)})
    return registry.build("reward", config.reward.terms["bt"], run)


QUESTIONS, LONG, SHORT = zip(*toy_rows(12, seed=5), strict=True)
ASKED = [prompt_text(question) for question in QUESTIONS]


def test_exploits_of_an_attack_take_the_place_of_pairs(toy, tmp_path):
    """Length explains every label. Pairs of an attack that reject long responses turn the preference around."""
    _, simple = modelled(toy, tmp_path / "plain", "algorithm.max_pairs=40")
    attack = tmp_path / "attack"
    attack.mkdir()
    rows = [
        {"prompt": prompt, "chosen": short, "rejected": long}
        for prompt, long, short in zip(ASKED, LONG, SHORT, strict=True)
    ]
    (attack / "exploits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    fed_back = ("algorithm.max_pairs=40", f"+needs.exploits={attack}")
    _, metrics = modelled(toy, tmp_path / "fed_back", *fed_back)
    assert (simple["pairs/corpus"], metrics["pairs/corpus"], metrics["pairs/exploits"]) == (40, 4, 36)
    assert metrics["selection/pairs"] == 4
    assert metrics["length_correlation"]["mean"] < simple["length_correlation"]["mean"] - 0.4
    with pytest.raises(ConfigError, match=r"max_pairs=36 leaves no corpus pair beside the 36 pairs of needs\.exploits"):
        modelled(toy, tmp_path / "full", "algorithm.max_pairs=36", f"+needs.exploits={attack}")
    (attack / "exploits.jsonl").unlink()
    with pytest.raises(ArtifactError, match=r"has no exploits.jsonl; name a recipe with algorithm=attack"):
        modelled(toy, tmp_path / "missing", *fed_back)


def test_odin_takes_length_out_of_the_score(toy, tmp_path):
    """Length explains every label. Without the second head the score is length; with it, what is left."""
    _, simple = modelled(toy, tmp_path / "plain")
    model, odin = modelled(toy, tmp_path / "odin", "algorithm.length_head=true")
    assert simple["length_correlation"]["mean"] > 0.7
    assert abs(odin["length_correlation"]["mean"]) < simple["length_correlation"]["mean"] - 0.4
    scale = ScoreScale.read(model)
    assert tuple(scale.attributes) == ("quality", "length") and tuple(scale.weights) == (1.0, 0.0)
    reward = loaded(toy, model)
    outputs = reward.scorers[0].outputs([*ASKED, *ASKED], [*LONG, *SHORT])
    assert outputs.shape == (24, 2)
    scores = reward([*ASKED, *ASKED], [*LONG, *SHORT]).total_N
    assert np.allclose(scores, (outputs[:, 0] - scale.mean) / scale.sd)
    tokens = [len(text.split()) for text in (*LONG, *SHORT)]
    assert np.corrcoef(outputs[:, 1], tokens)[0, 1] > 0.9


@pytest.mark.slow
def test_stated_confidence_helps_a_chosen_reply_and_harms_a_rejected_one(toy, tmp_path):
    """PPO-M. The worth of a sentence alone is the same after both responses."""
    size = ("algorithm.confidence_weight=0.5", "algorithm.epochs=10", "algorithm.lr=3e-3")
    _, found = modelled(toy, tmp_path, *size)
    assert found["confidence_gain/chosen"]["low"] > max(found["confidence_gain/rejected"]["high"], 0)
    assert found["accuracy"]["mean"] >= 0.95


def test_last_turn_reads_alike_when_it_is_loaded(toy, tmp_path):
    model, found = modelled(toy, tmp_path, "algorithm.context=last_turn")
    assert found["turns"]["mean"] == 1 and found["truncated"]["mean"] == 0
    assert ScoreScale.read(model).context == "last_turn"
    reward = loaded(toy, model)
    earlier = [
        f"\n\nHuman: something else\n\nAssistant: {text}{requested}"
        for requested, text in zip(ASKED, LONG, strict=True)
    ]
    assert np.array_equal(reward(earlier, LONG).total_N, reward(ASKED, LONG).total_N)


def test_the_whole_conversation_is_read_by_default_and_pairs_of_several_turns_are_told_apart(toy, tmp_path):
    data, policy = toy
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for row in rows[::2]:
        row["prompt"] = "\n\nHuman: hello\n\nAssistant: red green" + row["prompt"]
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join(json.dumps(row) for row in rows))
    model, found = modelled((mixed, policy), tmp_path, "algorithm.max_length=24")
    assert 0 < found["accuracy/multi_turn"]["n"] < found["accuracy"]["n"]
    assert found["turns"]["mean"] > 1.2
    short = modelled((mixed, policy), tmp_path, "algorithm.max_length=24", "algorithm.context=last_turn")[1]
    assert short["row_tokens"]["mean"] < found["row_tokens"]["mean"]
    assert short["truncated"]["mean"] < found["truncated"]["mean"]
    reward = loaded((mixed, policy), model, "algorithm.max_length=64")
    earlier = [f"\n\nHuman: hello\n\nAssistant: red green{requested}" for requested in ASKED]
    assert not np.allclose(reward(earlier, SHORT).total_N, reward(ASKED, SHORT).total_N)


@pytest.mark.slow
def test_averaged_weights_score_like_the_ensemble_when_members_start_alike(toy, tmp_path):
    model, found = modelled(toy, tmp_path, "algorithm.members=3", "algorithm.head_noise=0")
    assert found["accuracy/averaged"]["mean"] >= 0.95
    reward = loaded(toy, model, "reward.terms.bt.ensemble=warm")
    assert len(reward.scorers) == 1 and reward.scorers[0].scale == ScoreScale.read(model, AVERAGE_FILE)
    assert reward.scorers[0].scale != ScoreScale.read(model, SCALE_FILE)
    batch = reward([*ASKED, *ASKED], [*LONG, *SHORT])
    assert not batch.parts
    mean = loaded(toy, model)([*ASKED, *ASKED], [*LONG, *SHORT]).total_N
    assert np.corrcoef(batch.total_N, mean)[0, 1] > 0.95


def test_members_may_start_from_policies_of_other_seeds(tmp_path):
    """`needs.policy_1=sft` is the same recipe built with seed 1000 above: another policy, known before it is built."""
    more = ("algorithm.members=3", "+needs.policy_1=sft", "+needs.policy_2=sft", "seed=4")
    stage = planned("reward_model", *more, f"outputs={tmp_path}")
    assert {role: need.config.seed for role, need in stage.needs.items()} == {
        "policy": 4,
        "policy_1": 1004,
        "policy_2": 2004,
    }
    assert len({need.key for need in stage.needs.values()}) == 3
    assert stage.key != planned("reward_model", *more[:1], *more[-1:]).key


def test_members_of_other_policies_have_no_average(toy, tmp_path):
    data, _ = toy
    other = planned("sft", "data=pairs", f"data.path={data}", *FIXED, *ONE_LAYER, "seed=1", f"outputs={tmp_path}")
    execute(other)
    model, found = modelled(toy, tmp_path, "algorithm.members=2", f"+needs.policy_1={other.model}")
    assert found["accuracy"]["mean"] >= 0.95 and "accuracy/averaged" not in found
    with pytest.raises(ConfigError, match="started from different policies"):
        loaded(toy, model, "reward.terms.bt.ensemble=warm")
    assert np.isfinite(loaded(toy, model, "reward.terms.bt.ensemble=uwo")(ASKED, LONG).total_N).all()


@pytest.mark.parametrize("overrides", [("algorithm.length_head=true",), ("algorithm.members=2",)])
def test_adapters_are_saved_merged_and_score_the_same(toy, tmp_path, overrides):
    """Merging an adapter changes no score: longer responses are better before and after."""
    pytest.importorskip("peft")
    lora = ("model.lora.rank=4", "stages.sft.model.lora.rank=0")
    model, found = modelled(toy, tmp_path, *overrides, *lora)
    assert found["accuracy"]["mean"] >= 0.8
    assert (model / "adapter").is_dir()
    scores = loaded(toy, model)([*ASKED, *ASKED], [*LONG, *SHORT]).total_N
    assert np.isfinite(scores).all() and scores.std() > 0
    if "algorithm.length_head=true" not in overrides:
        assert (scores[:12] > scores[12:]).mean() >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("algorithm.members=2", "algorithm.length_head=true"),
        (
            *("algorithm.members=2", "algorithm.member_fraction=0.6", "algorithm.epochs=2"),
            *("algorithm.length_head=true", "algorithm.confidence_weight=0.5", "algorithm.micro_batch_tokens=600"),
        ),
    ],
)
def test_resumed_equals_uninterrupted(toy, tmp_path, overrides, monkeypatch):
    """Every file of the ensemble is the same, bit for bit."""
    data, policy = toy
    more = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", *FIXED[:2], *SIZE[1:], "algorithm.epochs=1")
    stages = [
        planned("reward_model", *more, *overrides, f"outputs={tmp_path / name}", f"checkpoint.every_steps={every}")
        for name, every in (("whole", 0), ("parts", 2))
    ]
    execute(stages[0])
    execute_with_stops(monkeypatch, RewardModelling, stages[1], 1, 5, 8)
    files = [
        {
            path.relative_to(stage.model).as_posix(): path.read_bytes()
            for path in Path(stage.model).rglob("*")
            if path.suffix == ".safetensors" or path.name.startswith("reward_scale")
        }
        for stage in stages
    ]
    assert files[0] == files[1] and len(files[0]) == 5
