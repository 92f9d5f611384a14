"""A stage's key changes with everything that decides its result, and with nothing else."""

from __future__ import annotations

import json
from functools import cache

import pytest
from support import checked, planned, save_tiny, toy_rows, write_pairs

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.stages import artifacts

ALL = ("sft", "reward_model", "dpo", "dpo_iterative")
BASE = ("data=mini_hh_small",)


@cache
def keys(*overrides: str) -> dict[str, str]:
    return {stage.recipe: stage.key for stage in planned("dpo_iterative", *BASE, *overrides).upstream()}


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("seed=1", ALL),
        ("data.seed=1", ALL),
        ("data.train_pairs=100", ALL),
        ("model.hidden=32", ALL),
        ("runtime.dtype=bfloat16", ALL),
        ("stages.sft.algorithm.epochs=1", ALL),
        ("model.tuned.sft.lr=0.1", ALL),
        ("rollout.temperature=0.5", ALL[1:]),
        ("model.tuned.rollout.max_new_tokens=7", ALL[1:]),
        ("stages.reward_model.algorithm.centering=0.1", ALL[1:]),
        ("stages.dpo.algorithm.beta=0.7", ALL[2:3] + ALL[3:]),
        ("algorithm.buffer=full", ALL[3:]),
        ("evaluation.prompts=8", ALL[3:]),
        ("reward=gold", ALL[3:]),
        ("needs.baseline=null", ALL[3:]),
    ],
)
def test_what_decides_a_result_changes_its_key_and_those_above(override, changed):
    before, after = keys(), keys(override)
    assert {name for name in after if before[name] != after[name]} == {n for n in changed if n in after}


@pytest.mark.parametrize(
    "override",
    [
        "checkpoint.every_steps=3",
        "outputs=elsewhere",
        "runtime.threads=2",
        "runtime.device=cpu",
        "artifacts.refresh=true",
        "algorithm.log_every_steps=3",
        "question=why",
    ],
)
def test_what_decides_nothing_changes_no_key(override):
    assert keys() == keys(override)


def test_evaluating_on_the_way_is_part_of_a_one_pass_result():
    """`eval_every_steps` adds policies to the result of DPO, so a stored result without them must not be reused."""
    assert planned("dpo", *BASE).key != planned("dpo", *BASE, "algorithm.eval_every_steps=5").key


@pytest.mark.parametrize(
    ("recipe", "key"), [("dpo", "6d8454c3ecf4"), ("grpo", "5d3f70637e34"), ("reward_model", "a5946b2d3187")]
)
def test_a_setting_that_was_added_to_all_algorithms_keeps_older_keys(recipe, key):
    """`eval_early` belongs to the base of settings classes that have further additions of their own."""
    assert planned(recipe).settings_key == key
    early = planned(recipe, "algorithm.eval_every_steps=4", "algorithm.eval_early=true").settings_key
    assert early != planned(recipe, "algorithm.eval_every_steps=4").settings_key


def test_a_default_that_is_written_out_is_the_same_stage():
    lr = checked("dpo_iterative", *BASE).algorithm.lr
    assert keys() == keys(f"algorithm.lr={lr}", "algorithm.rounds=3")


def test_shared_upstream_is_one_stage():
    study = planned("study/buffers", *BASE, "algorithm.buffer=full")
    single = planned("dpo_iterative", *BASE)
    assert study.needs["policy"].key == single.needs["policy"].key
    assert planned("sft", *BASE).key == single.needs["policy"].key
    assert [s.recipe for s in single.upstream()] == list(ALL)


def test_another_version_of_the_code_is_another_stage(monkeypatch):
    before = keys()
    monkeypatch.setattr(artifacts, "__version__", "99.0")
    assert not set(before.values()) & set(keys.__wrapped__().values())


def test_the_content_of_a_data_file_counts_and_its_name_does_not(tmp_path):
    def key(path):
        return planned("sft", "data=pairs", f"data.path={path}").key

    first = write_pairs(tmp_path / "a.jsonl", toy_rows(4))
    second = write_pairs(tmp_path / "b.jsonl", toy_rows(4))
    assert key(first) == key(second)
    write_pairs(second, toy_rows(4, seed=1))
    assert key(first) != key(second)


@pytest.fixture
def directory(tmp_path):
    return save_tiny("llama", train_tokenizer(["a b c"], 300), tmp_path / "policy")


def test_a_model_folder_can_stand_in_for_a_recipe(directory):
    stage = planned("dpo_iterative", *BASE, f"needs.policy={directory}", "needs.baseline=null")
    assert isinstance(stage.needs["policy"], artifacts.External)
    assert stage.needs["policy"].model == str(directory)
    before = stage.key
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"note": 1}))
    assert planned("dpo_iterative", *BASE, f"needs.policy={directory}", "needs.baseline=null").key != before


def test_the_content_of_a_hugging_face_model_counts(directory):
    def key():
        return planned("sft", *BASE, "model=hf", f"model.path={directory}").key

    before = key()
    weights = directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert key() != before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("needs.policy=nonsense", r"needs.policy=nonsense is neither a recipe \(.*dpo, .*hub id"),
        ("stages.sft.algorithm.epoch=3", r"stage sft \(needs.policy\): algorithm.epoch is not a setting.*epochs"),
        ("stages.sftt.algorithm.epochs=3", r"stages.sftt is not a recipe; did you mean sft\?"),
    ],
)
def test_a_wrong_source_or_stage_is_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        planned("dpo", *BASE, override)


def test_a_result_without_its_model_is_not_complete(tmp_path):
    stage = planned("sft", *BASE, f"outputs={tmp_path}")
    stage.directory.mkdir(parents=True)
    (stage.directory / "result.json").write_text('{"status": "completed"}')
    assert stage.result() is None
    (stage.directory / "model").mkdir()
    assert stage.result() == {"status": "completed"}
    (stage.directory / "result.json").write_text('{"status": "running"}')
    assert stage.result() is None
