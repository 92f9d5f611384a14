"""A stage fits its device, and continues when it runs out of memory; no result depends on either."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, model_tensors, planned
from test_sampler import CONFIGS, eager_eos, flat, random_model, sample

from rlhf_lab.core.errors import DeviceMemoryError
from rlhf_lab.core.files import read_json
from rlhf_lab.memory.copies import policy_shape
from rlhf_lab.memory.devices import Device
from rlhf_lab.memory.neutral import fitted, neutral_change
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.sharding.engine import Engine

QUICK = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0")


def gib(count: float) -> Device:
    return Device("a card", int(count * 2**30), cuda=True)


def llama_8b(recipe: str, *more: str) -> Any:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    return planned(
        recipe,
        *("model=hf", f"model.path={name}", f"needs.policy={name}", "data=mini_hh", "model.lora.rank=16"),
        *("model.weights=nf4", "runtime.device=cpu", "runtime.dtype=bfloat16", *more),
    )


def test_a_stage_that_fits_keeps_its_settings() -> None:
    stage = planned("sft", *QUICK)
    change, plan = neutral_change(stage, gib(16))
    assert change == {} and plan is not None


def test_8b_is_made_to_fit_a_card_of_24_gb() -> None:
    """The sampler takes fewer rows, training smaller micro-batches; what decides the result stays."""
    stage = llama_8b("dpo")
    card = gib(22.3)
    assert plan_stage(stage, cuda=True).peak > card.memory  # type: ignore[operator]
    change, plan = neutral_change(stage, card)
    assert plan is not None and plan.peak <= card.memory  # type: ignore[operator]
    assert {"rollout.batch_rows", "algorithm.micro_batch_tokens"} <= change.keys()
    assert change.keys() <= {"rollout.batch_rows", "algorithm.micro_batch_tokens", "sharding.checkpointing"}


def test_a_stage_that_cannot_fit_is_left_as_it_is() -> None:
    assert neutral_change(llama_8b("dpo"), gib(6)) == ({}, None)


def test_fitting_is_for_models_that_are_not_from_scratch_and_changes_no_key() -> None:
    assert not planned("sft", *QUICK).config.fits_itself
    assert planned("sft", *QUICK, "runtime.fit=auto").config.fits_itself
    assert not llama_8b("dpo", "runtime.fit=none").config.fits_itself
    stage = llama_8b("dpo", "runtime.memory_gib=22.3")
    assert stage.config.fits_itself and stage.key == llama_8b("dpo", "runtime.fit=none").key
    config, stated = fitted(stage)
    assert "algorithm.micro_batch_tokens=" in stated and "of 22.3 GiB" in stated
    assert config.algorithm.micro_batch_tokens != stage.config.algorithm.micro_batch_tokens


def out_of_memory_above(monkeypatch: Any, tokens: int) -> list[int]:
    """Let passes of more padded tokens fail as a GPU's allocator does. Returns the sizes that were tried."""
    tried: list[int] = []
    loss = Engine.loss

    def limited(self: Engine, micro: Any, *, last: bool) -> Any:
        batch = getattr(micro, "batch", micro)
        tried.append(batch.tokens_BT.numel())
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, micro, last=last)

    monkeypatch.setattr(Engine, "loss", limited)
    return tried


@pytest.mark.parametrize("recipe", ["sft", "grpo"])
def test_a_step_that_runs_out_of_memory_is_taken_again(recipe: str, monkeypatch: Any, tmp_path: Path) -> None:
    size = ("algorithm.epochs=0.5",) if recipe == "sft" else ("algorithm.iterations=2", "algorithm.batch_size=16")
    size += ("stages.sft.algorithm.epochs=0.5", "reward=length") if recipe == "grpo" else ()

    def build(name: str, *more: str) -> Any:
        stage = planned(recipe, *QUICK, *size, *more, f"outputs={tmp_path / name}")
        for needed in stage.upstream():
            execute(needed)
        return stage

    full = build("whole")
    tried = out_of_memory_above(monkeypatch, 700)
    cut = build("cut", "runtime.fit=auto")
    assert max(tried) > 700
    assert any("out of memory at step" in note for note in read_json(cut.directory / "result.json")["notes"])
    expected = model_tensors(Path(full.model))
    for name, tensor in model_tensors(Path(cut.model)).items():
        assert torch.allclose(tensor, expected[name], atol=2e-5), name


def test_without_consent_the_error_says_what_to_do(monkeypatch: Any, tmp_path: Path) -> None:
    out_of_memory_above(monkeypatch, 700)
    stage = planned("sft", *QUICK, "algorithm.epochs=0.5", f"outputs={tmp_path}")
    with pytest.raises(DeviceMemoryError, match="step 1; see what would fit"):
        execute(stage)


def test_one_row_that_does_not_fit_ends_the_run(monkeypatch: Any, tmp_path: Path) -> None:
    out_of_memory_above(monkeypatch, 0)
    stage = planned("sft", *QUICK, "algorithm.epochs=0.5", "runtime.fit=auto", f"outputs={tmp_path}")
    with pytest.raises(DeviceMemoryError):
        execute(stage)


@pytest.mark.parametrize("steps", [0, 3])
def test_the_sampler_draws_the_same_rows_in_smaller_batches(steps: int, monkeypatch: Any) -> None:
    """Out of memory at once, or when some rows are done: half as many continue, from their prompts."""
    model = eager_eos(random_model(CONFIGS["llama"]), 4.0)
    rows, logps_N = flat(sample(model))
    sizes: list[int] = []
    step = Decoder.step

    def limited(self: Any, token_R: Any, position_R: Any, cache: Any) -> Any:
        sizes.append(len(token_R))
        if len(sizes) == steps + 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, token_R, position_R, cache)

    monkeypatch.setattr(Decoder, "step", limited)
    again, logps_again_N = flat(sample(model))
    assert again == rows and torch.allclose(logps_again_N, logps_N, atol=1e-5)
    rows_at_once, *later = sizes[steps:]
    assert 2 <= max(later) <= rows_at_once // 2


def policy_70b(*overrides: str) -> Stage:
    """Stage of 70B with an adapter on 16 cards: 17.6 GB of base and of reference each."""
    name = "meta-llama/Llama-3.1-70B-Instruct"
    return planned(
        *("grpo", "model=hf", f"model.path={name}", f"needs.policy={name}", "data=mini_hh", "reward=length"),
        *("needs.reward=null", "model.lora.rank=16", "runtime.dtype=bfloat16", "runtime.device=cpu"),
        *("sharding=fsdp_full", "sharding.processes=16", "sharding.reference=sharded", *overrides),
    )


def test_a_policy_that_fits_no_card_whole_is_sampled_block_by_block() -> None:
    """The full bfloat16 model takes 141 GB."""
    stage = policy_70b()
    card = Device("a card", 80 * 10**9, cuda=True)
    full = plan_stage(stage, 16, cuda=True).phases["sampling"]
    assert full > 141e9 + 2 * 17.6e9
    change, plan = neutral_change(stage, card)
    assert change["sharding.sampling"] == "block"
    assert plan is not None and plan.phases["sampling"] <= 80e9


def test_weights_for_vllm_are_a_full_copy_of_the_policy() -> None:
    plan = plan_stage(policy_70b("rollout=vllm"), 16, cuda=True)
    assert "sampling" not in plan.phases
    full = 2 * policy_shape(plan.stage).parameters  # bfloat16
    assert full > 141e9 and plan.phases["sending weights"] == plan.resident_bytes + full


LIMITED = """
import sys

if "rlhf_lab.stages.worker" in sys.orig_argv:
    import torch

    from rlhf_lab.core import ranks
    from rlhf_lab.training.sharding.engine import DataParallel

    loss = DataParallel.loss

    def limited(self, micro, *, last):
        if ranks.rank() == 1 and micro.tokens_BT.numel() > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(self, micro, last=last)

    DataParallel.loss = limited
"""
"""Read by every Python process that starts: the second of two that train together has too little memory."""


@pytest.mark.slow
@pytest.mark.long
def test_processes_that_train_together_begin_again_in_smaller_micro_batches(tmp_path: Path) -> None:
    """The weights are those of a run in which memory sufficed, to rounding."""
    (tmp_path / "sitecustomize.py").write_text(LIMITED)
    command = [sys.executable, "-m", "rlhf_lab", "+recipe=sft", *QUICK, "algorithm.epochs=0.5", "runtime.fit=auto"]
    command += ["sharding=ddp", "sharding.processes=2"]

    def run(name: str, path: str) -> tuple[str, Path]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [*command, f"outputs={tmp_path / name}"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (model,) = (tmp_path / name).glob("**/model.safetensors")
        return done.stdout, model.parent

    stated, cut = run("cut", str(tmp_path))
    assert "out of memory: restarting from the last checkpoint with micro-batches of" in " ".join(stated.split())
    _, full = run("whole", "")
    expected = model_tensors(full)
    for name, tensor in model_tensors(cut).items():
        assert torch.allclose(tensor, expected[name], atol=1e-4), name
