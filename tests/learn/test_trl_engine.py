"""`engine=trl` end to end in a tiny world: the same data, the same numbers, the same files as the native engine."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, model_tensors, planned, plant, prompt_text, toy_rows, write_pairs

from rlhf_lab.algorithms.trl.engine import deal_rows, unused_id
from rlhf_lab.config import registry
from rlhf_lab.core.errors import MissingDependency, NumericError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.models.pair_rows import pair_rows
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.loop import Interrupted
from rlhf_lab.training.run import Run

pytest.importorskip("trl", reason="pip install 'rlhf_lab[trl]'")
from rlhf_lab.algorithms.trl import engine

ADAMW = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3")
EVERY_STEP = "algorithm.log_every_steps=1"
UPSTREAM = tuple(f"stages.{name}.{setting}" for name in ("sft", "reward_model") for setting in (*ADAMW, EVERY_STEP))
ON_POLICY = ("reward=gold", "needs.reward=null", "algorithm.prompts_per_iteration=4", "algorithm.batch_size=16")
CASES = {
    "sft": ("sft", *ADAMW),
    "reward_model": ("reward_model", *ADAMW, "algorithm.margin=0.2"),
    "sigmoid": ("dpo", "algorithm.lr=1e-3", "algorithm.eval_every_steps=1"),
    "ipo": ("dpo", "algorithm=ipo", "algorithm.lr=1e-3"),
    "robust": ("dpo", "algorithm.loss=robust", "algorithm.lr=1e-3"),
    "kto": ("dpo", "algorithm=kto", "algorithm.lr=1e-3", "algorithm.epochs=1"),
    "grpo": ("grpo", *ON_POLICY, "algorithm.iterations=3"),
    "rloo": ("grpo", "algorithm=rloo", "algorithm.aggregation=constant", *ON_POLICY, "algorithm.iterations=3"),
    "several updates": ("grpo", *ON_POLICY, "algorithm.batch_size=8", "algorithm.epochs=2", "algorithm.iterations=2"),
}
ENGINES = ("native", "trl")
ON_CORPUS = ("sft", "reward_model", "sigmoid", "ipo", "robust", "kto")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return f"outputs={tmp_path_factory.mktemp('trl')}"


def stage(world: str, case: str, *overrides: str) -> Stage:
    recipe, *own = CASES[case]
    names = {o.partition("=")[0] for o in overrides}
    own = [item for item in own if item.partition("=")[0] not in names]
    return planned(recipe, *ONE_LAYER, *SMALL_WORLD, *UPSTREAM, world, EVERY_STEP, *own, *overrides)


def built(world: str, case: str, *overrides: str) -> tuple[Stage, dict[str, Any]]:
    found = stage(world, case, *overrides)
    return found, ensure(found, 0.0)


def opened(world: str, case: str, directory) -> tuple[Any, Run]:
    """(native algorithm, run) of a stage that TRL is about to train."""
    found = stage(world, case, "engine=trl")
    for need in found.needs.values():
        ensure(need, 0.0)
    run = Run(directory, found.config, {role: need.model for role, need in found.needs.items()})
    return registry.build("algorithm", found.config.algorithm, run), run


@pytest.mark.parametrize("case", ["rloo", "several updates"])
def test_a_trainer_that_samples_completes_a_stage(world, case):
    found, result = built(world, case, "engine=trl")
    rows = read_jsonl(found.directory / "metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert result["status"] == "completed" and losses and all(map(np.isfinite, losses))
    assert {"checkpoint.pt", "trl"}.isdisjoint(path.name for path in found.directory.iterdir())
    before, after = (
        model_tensors(path) for path in (found.needs["policy"].directory / "model", found.directory / "model")
    )
    assert all(tensor.isfinite().all() for tensor in after.values())
    assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    assert len(result["policies"]) >= 2 and result["policies"][0]["name"] == "SFT"
    # TRL sampled once per iteration and took the planned updates
    settings = found.config.algorithm
    assert result["metrics"]["groups"] == settings.iterations * settings.prompts_per_iteration
    assert max(row["step"] for row in rows) == settings.iterations * settings.steps_per_iteration


@pytest.mark.parametrize("case", ON_CORPUS)
def test_both_engines_take_the_same_steps(world, case):
    """Same start, same batches, same schedule: losses, gradients and the trained model agree to rounding."""
    stages = {name: built(world, case, f"engine={name}")[0] for name in ("native", "trl")}
    logs = {name: [r for r in read_jsonl(s.directory / "metrics.jsonl") if "loss" in r] for name, s in stages.items()}
    assert len(logs["native"]) == len(logs["trl"]) >= 2
    for ours, theirs in zip(logs["native"], logs["trl"], strict=True):
        assert theirs["step"] == ours["step"]
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
        assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
        assert theirs["lr_scale"] == pytest.approx(ours["lr_scale"], rel=1e-6)
        for name in ("accuracy", "margin", "chosen_logp", "rejected_logp", "z_ref"):
            # while the policy is its reference every margin is 0, and rounding decides which pairs are above it
            is_tie = name == "accuracy" and abs(ours.get("margin", 1.0)) < 1e-6
            if name in ours and name in theirs and not is_tie:
                assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-4), name
    ours, theirs = (model_tensors(stages[name].directory / "model") for name in ("native", "trl"))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-4


@pytest.mark.parametrize("case", ["sft", "reward_model", "sigmoid", "kto"])
def test_trl_trains_on_the_ids_of_the_encoder(world, case, tmp_path):
    algorithm, run = opened(world, case, tmp_path)
    trainer, encoder, seen = engine.build(algorithm, run), algorithm.encoder, []
    for batch in trainer.get_train_dataloader():
        seen += [
            ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        if case == "sft":
            responses = [ids[ids != -100].tolist() for ids in batch["labels"]]
            assert all(
                row[-len(response) :] == response
                for row, response in zip(seen[-len(responses) :], responses, strict=True)
            )
            assert any(response[-1] == encoder.eos_id for response in responses)
    length = algorithm.settings.max_length
    pairs = [pair_rows(encoder, pair, length) for pair in run.corpus.train]
    rows = {tuple(prompt + response) for pair in pairs for prompt, response in pair}
    found = {tuple(row) for row in seen}
    assert found <= rows if case != "reward_model" else len(found & rows) >= len(rows)  # it has on-policy pairs besides
    assert len(seen) == sum(map(len, algorithm.steps)) * (1 if case == "sft" else 2)


def test_kto_of_single_replies_and_masks_of_conversations(world, tmp_path):
    """The losses of both engines on data that TRL has types of its own for, here as the lab reads them."""
    rows = [
        {"prompt": f"what about {i}", "completion": f"red {i % 7} warm", "label": i % 3 > 0, "messages": None}
        for i in range(40)
    ]
    talk = [{"role": "user", "content": "red?"}, {"role": "assistant", "content": "blue"}]
    for i, row in enumerate(rows):
        row["messages"] = [*talk, {"role": "user", "content": f"and {i}?"}, {"role": "assistant", "content": "warm"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy, _ = built(world, "sft")
    small = (*ONE_LAYER, *(setting for setting in SMALL_WORLD if not setting.startswith("data")), world, EVERY_STEP)
    start = (
        *(f"needs.policy={policy.model}", "needs.reward=null", "algorithm=kto", "algorithm.lr=1e-3"),
        "algorithm.epochs=2",
    )
    for recipe, data, own in (("dpo", "unpaired", start), ("sft", "sft", ADAMW)):
        stages = [
            planned(recipe, *small, *own, f"data={data}", f"data.path={path}", f"engine={engine}") for engine in ENGINES
        ]
        for one in stages:
            execute(one)
        ours, theirs = (
            [row["loss"] for row in read_jsonl(one.directory / "metrics.jsonl") if "loss" in row] for one in stages
        )
        assert len(ours) >= 2 and theirs == pytest.approx(ours, rel=1e-4), recipe


def test_only_the_end_of_the_encoder_ends_a_reply(world, tmp_path):
    """Hugging Face models may name several, and TRL would stop at each."""
    algorithm, run = opened(world, "grpo", tmp_path)
    algorithm.model.generation_config.eos_token_id = [algorithm.encoder.eos_id, 17]
    trainer = engine.build(algorithm, run)
    assert trainer.eos_token_ids == [algorithm.encoder.eos_id]
    assert algorithm.model.generation_config.eos_token_id == [algorithm.encoder.eos_id, 17]  # the twin's is its own
    prompts = run.corpus.prompts("train")[:3]
    assert trainer._tokenize_prompts(prompts)[0] == [algorithm.encoder.prompt(text, 48) for text in prompts]


def test_a_model_with_absolute_positions_is_refused(world, tmp_path):
    found = stage(world, "grpo", "model.family=gpt2")
    for need in found.needs.values():
        ensure(need, 0.0)
    config = found.config.replace(engine="trl")  # as a hub model would get past the check of the config
    run = Run(tmp_path, config, {role: need.model for role, need in found.needs.items()})
    algorithm = registry.build("algorithm", config.algorithm, run)
    with pytest.raises(NumericError, match="without passing positions, which this model needs"):
        engine.build(algorithm, run)


def test_adapters_train_and_merge_as_natively(world):
    lora = ("model.lora.rank=4", "stages.sft.model.lora.rank=0", "stages.reward_model.model.lora.rank=0")
    models = [
        model_tensors(built(world, "sigmoid", *lora, f"engine={name}")[0].directory / "model")
        for name in ("native", "trl")
    ]
    base = model_tensors(stage(world, "sigmoid").needs["policy"].directory / "model")
    assert max(float((models[0][n] - models[1][n]).abs().max()) for n in base) < 1e-5
    assert max(float((base[n] - models[1][n]).abs().max()) for n in base) > 1e-3


def test_smaller_forward_passes_change_nothing(world):
    full, parts = (
        built(world, "sigmoid", "engine=trl", f"algorithm.micro_batch_tokens={tokens}")[0] for tokens in (0, 2100)
    )
    ours, theirs = (model_tensors(found.directory / "model") for found in (full, parts))
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 1e-4


@pytest.mark.slow
def test_bfloat16_runs(world):
    assert built(world, "sigmoid", "engine=trl", "runtime.dtype=bfloat16")[1]["status"] == "completed"


@dataclass
class Recorder:
    """A reward that records its inputs, counts how often a response says blue, and abstains now and then."""

    def __post_init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []

    def __call__(self, prompts, responses):
        self.calls.append((list(prompts), list(responses)))
        blue = np.array([text.split().count("blue") for text in responses], dtype=float)
        return RewardBatch(np.where([text.startswith("red red") for text in responses], np.nan, blue))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """(a corpus of responses of eight words, a policy that imitates them)."""
    directory = tmp_path_factory.mktemp("toy")
    data = write_pairs(directory / "words.jsonl", toy_rows(200))
    found = planned(
        "sft", "data=pairs", f"data.path={data}", ADAMW[0], "algorithm.lr=2e-2", *ONE_LAYER, f"outputs={directory}"
    )
    execute(found)
    return (f"data.path={data}", f"needs.policy={found.model}", f"outputs={directory}")


@pytest.fixture
def planted(monkeypatch):
    """(settings of a reward that only this test knows, the reward)."""
    recorder = Recorder()
    return plant(monkeypatch, lambda settings, run: recorder), recorder


@pytest.mark.slow
def test_it_learns_a_planted_reward_with_texts_and_shaping(toy, planted):
    settings, recorder = planted
    size = ("algorithm.iterations=14", "algorithm.prompts_per_iteration=16", "algorithm.batch_size=64")
    rate = ("algorithm.lr=5e-3", "algorithm.beta=0.01")
    evaluation = ("evaluation.prompts=8", "evaluation.samples_per_prompt=4", "evaluation.pairs=20")
    length = ("rollout.max_new_tokens=10", "algorithm.missing_eos_penalty=0.5")
    choice = ("engine=trl", "data=pairs", "needs.reward=null", "reward=length")
    found = planned("grpo", *choice, *toy, *ONE_LAYER, *size, *rate, *evaluation, *length, EVERY_STEP)
    found = replace(found, config=found.config.replace(reward=RewardGraph(terms={"planted": settings})))
    result = execute(found)
    log = read_jsonl(found.directory / "metrics.jsonl")
    rows, trained = [row for row in log if "reward" in row], [row for row in log if "trl/reward" in row]
    assert np.mean([row["reward"] for row in rows[-3:]]) > np.mean([row["reward"] for row in rows[:2]]) + 0.5
    for row, theirs in zip(rows, trained, strict=True):  # what TRL learns from is the shaped score
        assert theirs["trl/reward"] == pytest.approx(row["score"], abs=1e-5)
        assert theirs["trl/completions/mean_length"] == pytest.approx(row["tokens"], abs=1e-5)
        assert row["score"] == pytest.approx(row["reward"] - 0.5 * (1 - row["ended"]), abs=0.05)
    assert any(row["ended"] < 1 for row in rows) and any(row["unscored"] > 0 for row in rows)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-4) and rows[-1]["kl"] > 0.01
    prompts, responses = recorder.calls[0]
    assert len(prompts) == 64 and prompts[0] == prompts[3] != prompts[4]
    assert all(prompt.startswith(prompt_text("what about")[:18]) for prompt in prompts)
    assert all(text == text.strip() and "<|" not in text for text in responses)
    assert result["metrics"]["groups"] == 14 * 16 and result["metrics"]["generated_tokens"] > 14 * 64


@pytest.mark.slow
@pytest.mark.parametrize(("case", "step", "total"), [("sft", 7, 12), ("several updates", 3, 8)])
def test_stopped_by_a_signal_it_goes_on_where_it_was(world, monkeypatch, case, step, total):
    """On a corpus the result is that of an uninterrupted run; TRL's sampling starts a new iteration instead."""
    from rlhf_lab.algorithms.trl import trainers

    full, _ = built(world, case, "engine=trl", "checkpoint.every_steps=5")
    expected, log = model_tensors(full.directory / "model"), read_jsonl(full.directory / "metrics.jsonl")
    original = trainers.LabCallback.on_step_end

    def stop(self, args, state, control, **kwargs):
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, args, state, control, **kwargs)

    monkeypatch.setattr(trainers.LabCallback, "on_step_end", stop)
    with pytest.raises(Interrupted, match=f"stopped after step {step} of {total}"):
        execute(full, discard=True)
    assert read_json(full.directory / "result.json")["status"] == "interrupted"
    assert (full.directory / "checkpoint.pt").exists() and (full.directory / "trl" / f"checkpoint-{step}").is_dir()
    monkeypatch.setattr(trainers.LabCallback, "on_step_end", original)
    result = execute(full)
    assert result["status"] == "completed" and f"resumed at step {step}" in result["notes"]
    rows = [(row["step"], row["loss"]) for row in read_jsonl(full.directory / "metrics.jsonl") if "loss" in row]
    assert [number for number, _ in rows] == list(range(1, total + 1))
    if case == "sft":
        assert rows == [(row["step"], row["loss"]) for row in log]
        found = model_tensors(full.directory / "model")
        assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("missing", "overrides", "message"),
    [
        ("trl", (), r"engine=trl needs a library .* pip install 'rlhf_lab\[trl\]'"),
        ("vllm", ("rollout=vllm",), r"rollout=vllm with engine=trl needs a library .* pip install 'trl\[vllm\]'"),
    ],
)
def test_a_missing_library_is_named(world, monkeypatch, missing, overrides, message):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(MissingDependency, match=message):
        engine.load(stage(world, "grpo", "engine=trl", *overrides).config)


def test_a_step_is_cut_into_equal_passes():
    batches, dropped = deal_rows([[0, 1, 2, 3], [4, 5, 6], [7]], 2)
    assert (batches, dropped) == ([[0, 1], [2, 3], [4], [5]], 2)


def test_the_padding_of_a_reward_model_ends_no_row():
    assert unused_id([([5], [0]), ([5], [3, 1]), ([5], [7, 0])], 10) == 2
