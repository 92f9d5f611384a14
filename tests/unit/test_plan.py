"""The memory plan of recipes: which copies they hold, what makes them fit, when a run is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned, save_tiny, toy_rows, write_pairs
from support import gpt2_tokenizer as tokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rlhf_lab.config.overrides import forced
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.copies import gathered_bytes_to_sample, micro_rows, reward_copies, sampled, step_rows
from rlhf_lab.memory.devices import GIB, Device, device, processes
from rlhf_lab.memory.fit import smallest_change
from rlhf_lab.memory.neutral import memory_lines
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.shapes import config_shape, policy_shape, source_shape
from rlhf_lab.memory.show import derivation, stage_table
from rlhf_lab.memory.sizes import PUBLISHED
from rlhf_lab.memory.state import frozen_state

GPU = Device("a GPU", 16 * GIB, count=1, cuda=True)
WHOLE = ("stages.sft.model.lora.rank=0", "stages.reward_model.model.lora.rank=0")
ONE_ROW, AGAIN = "algorithm.micro_batch_tokens=512", "sharding.checkpointing=true"
HF = ("model=hf", "model.path=gpt2-medium")


def names(found: StagePlan) -> list[str]:
    return [line.copy.name for line in found.lines]


@pytest.mark.parametrize(
    ("recipe", "overrides", "model_copies"),
    [
        ("sft", (), ["policy"]),
        ("reward_model", (), ["reward model", "policy (samples)"]),
        ("dpo", (), ["policy", "reference", "reward bt"]),
        ("dpo_lora", (), ["policy", "reward bt"]),
        ("dpo_lora", ("sharding=fsdp_full",), ["policy", "reference", "reward bt"]),
        ("dpo_lora", ("sharding=zero3", *HF), ["policy", "reference", "reward bt"]),
        ("ppo", (), ["policy", "reference", "critic", "reward bt"]),
        ("ppo", ("algorithm.critic=shared", "algorithm.critic_warmup=0"), ["policy", "reference", "reward bt"]),
        ("ppo", ("model.lora.rank=4", *WHOLE), ["policy", "critic", "reward bt"]),
        ("ppo_ensemble", (), ["policy", "reference", "critic", "reward bt 0", "reward bt 1", "reward bt 2"]),
    ],
)
def test_the_copies_that_a_stage_holds(recipe: str, overrides: tuple[str, ...], model_copies: list[str]) -> None:
    assert names(plan_stage(planned(recipe, *overrides))) == model_copies


def test_ppo_by_hand() -> None:
    """Policy and critic train, 16 B a parameter in float32; reference and reward model are 4 B."""
    stage = planned("ppo", *HF)
    policy = PUBLISHED["gpt2-medium"].parameters
    scored = policy + 1024  # a tied head adds nothing, the scalar head 1024 weights
    assert plan_stage(stage).floor == 16 * policy + 16 * scored + 4 * policy + 4 * scored


def test_a_critic_has_an_adapter_and_a_head_of_its_own() -> None:
    found = plan_stage(planned("ppo", *HF, "model.lora.rank=4"))
    policy, critic = (next(x.state for x in found.lines if x.copy.name == name) for name in ("policy", "critic"))
    assert policy.gradients == 4 * PUBLISHED["gpt2-medium"].adapter(4)
    assert critic.gradients == 4 * (PUBLISHED["gpt2-medium"].adapter(4) + 1024)


def test_adapters_of_critic_and_reward_model_lie_on_one_base_by_hand() -> None:
    """rlhf_lab/memory/copies.py: one base of 4 B a number. Added are the adapters of policy, reward model and critic,
    and of the critic the reward model's once more: it starts from that.
    """
    found = plan_stage(planned("ppo", *HF, "model.lora.rank=4"))
    shape = PUBLISHED["gpt2-medium"]
    adapter, head = shape.adapter(4), 1024
    weights = {line.copy.name: line.state.weights for line in found.lines}
    assert weights == {
        "policy": 4 * (shape.parameters + adapter),
        "critic": 4 * (adapter + head + adapter),
        "reward bt": 4 * (adapter + head),
    }
    assert any("policy's base" in str(cell) for cell in stage_table(found).columns[0].cells)
    gold = plan_stage(planned("ppo", *HF, "model.lora.rank=4", "reward=gold", "needs.reward=null"))
    assert gold.lines[1].state.weights == 4 * (adapter + head)  # a critic from the policy


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("stages.reward_model.model.lora.rank=0",), ""),  # full fine-tuning: nothing in common
        (("sharding=fsdp_full",), ""),
        (("model.weights_of.reward=bfloat16",), "stores it as bfloat16 and the policy's base as float32"),
        (("stages.reward_model.needs.policy=openai-community/gpt2-medium",), "than the one the policy starts from"),
    ],
)
def test_a_reward_model_may_have_a_base_of_its_own(overrides: tuple[str, ...], reason: str) -> None:
    found = plan_stage(planned("grpo", *HF, "model.lora.rank=4", *overrides))
    line = next(line for line in found.lines if line.copy.name == "reward bt")
    assert line.copy.beside is None and line.state.weights >= 2 * line.copy.shape.parameters
    assert reason in line.copy.apart and bool(reason) == bool(line.copy.apart)
    assert any(line.copy.apart in text for text in derivation(found))


def test_rows_of_a_step() -> None:
    """Sixteen pairs are 32 rows on 16 prompts; a budget of 1024 tokens takes one pair of 512 tokens each."""
    stage = planned("dpo", *HF)
    rows = step_rows(stage, 1)
    assert (rows.rows, rows.prompts, rows.width) == (32, 16, 512)
    assert step_rows(stage, 4).rows == 8
    small = planned("dpo", *HF, "algorithm.micro_batch_tokens=1024")
    assert (micro_rows(small, 1).rows, micro_rows(small, 1).prompts) == (2, 1)


def test_what_is_sampled_at_once() -> None:
    """The evaluation samples 384 · 4 responses, 512 at a time: 128 prompts, and the others follow."""
    assert sampled(planned("ppo")) == (128, 4, True)
    assert sampled(planned("sft")) is None


def test_where_the_reference_lies() -> None:
    resident, away = (plan_stage(planned("dpo", *HF, f"sharding.reference={x}")) for x in ("resident", "offload"))
    weights = 4 * PUBLISHED["gpt2-medium"].parameters
    assert resident.resident - away.resident == weights
    assert resident.phases["update"] - away.phases["update"] == weights
    assert resident.phases["scoring"] == away.phases["scoring"]  # it is there for its pass
    sharded = planned("dpo", *HF, "sharding=fsdp_full", "sharding.reference=sharded", "sharding.processes=4")
    reference = next(x for x in plan_stage(sharded, 4).lines if x.copy.reference)
    assert reference.state.weights == weights // 4
    assert reference.gathered == 4 * (2 * PUBLISHED["gpt2-medium"].block + PUBLISHED["gpt2-medium"].root)
    # Two copies: each process has one half of a model in place of a quarter.
    copies = planned("dpo", *HF, "sharding=fsdp_full", "sharding.reference=sharded", "sharding.replicas=2")
    for four, two in zip(plan_stage(copies, 4).lines, plan_stage(sharded, 2).lines, strict=True):
        assert four.state == two.state
    full = planned("dpo", *HF, "sharding=fsdp_full", "sharding.processes=4", "runtime.dtype=bfloat16")
    halved = next(x for x in plan_stage(full, 4).lines if x.copy.reference)
    assert halved.state.weights == weights - 2 * 24 * PUBLISHED["gpt2-medium"].block  # the blocks alone
    assert next(x for x in plan_stage(full, 1).lines if x.copy.reference).state.weights == weights


# --- shapes


def test_a_folder_is_read_without_its_weights(tmp_path: Path) -> None:
    directory = save_tiny("llama", tokenizer(["one two three"], 300), tmp_path / "model")
    (directory / "model.safetensors").unlink()
    shape = source_shape(str(directory))
    assert (shape.family, shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.tied) == (
        *("llama", 32, 2, 4, 2),
        False,
    )


@pytest.mark.parametrize("kind", ["gemma3", "mamba"])
def test_a_config_without_the_usual_names_has_no_plan(kind: str) -> None:
    """Gemma 3 with images has them one level deeper, and Mamba has no heads."""
    with pytest.raises(ConfigError, match=f"model_type={kind} has no memory plan"):
        config_shape(CONFIG_MAPPING[kind]())


def test_a_config_without_a_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="model_type=bert"):
        source_shape(str(tmp_path))


# --- what fits


@pytest.mark.parametrize("recipe", ["dpo", "ppo"])
def test_the_smallest_change_makes_all_stages_fit(recipe: str) -> None:
    root = planned(recipe, *HF)
    assert GPU.memory is not None and max(plan_stage(s, cuda=True).peak for s in root.upstream()) > GPU.memory
    hint = smallest_change(root, GPU)
    assert hint is not None and hint.peak <= GPU.memory
    again = planned(recipe, *HF, *map(forced, hint.overrides)).upstream()
    assert max(plan_stage(s, cuda=True).peak for s in again) == hint.peak  # what is printed can be typed


def test_micro_batches_are_of_the_stage_that_needs_them() -> None:
    root = planned("dpo", *HF, "algorithm.micro_batch_tokens=1024", "rollout.batch_rows=64")
    peaks = {s.recipe: plan_stage(s, cuda=True).peak for s in root.upstream()}
    largest = max(peaks["sft"], peaks["dpo"])
    assert peaks["reward_model"] > largest
    hint = smallest_change(root, replace(GPU, memory=largest))
    assert hint is not None
    assert [o.partition("=")[0] for o in hint.overrides] == ["stages.reward_model.algorithm.micro_batch_tokens"]


def test_changes_are_tried_in_order() -> None:
    """Smaller micro-batches; several free settings; an adapter; devices, as many as there are; nothing."""
    root = planned("sft", *HF)
    slightly = smallest_change(root, replace(GPU, memory=plan_stage(root, cuda=True).peak - 1))
    assert slightly is not None and slightly.overrides == ["algorithm.micro_batch_tokens=4096"]
    smallest = replace(
        GPU, memory=plan_stage(planned("sft", *HF, "runtime.dtype=bfloat16", ONE_ROW, AGAIN), cuda=True).peak
    )
    several = smallest_change(root, replace(smallest, count=8))
    assert several is not None and not any("sharding=" in o or "lora" in o for o in several.overrides)
    tight = replace(GPU, memory=plan_stage(root).floor - GIB // 2, count=8)
    adapted = smallest_change(root, tight)
    assert adapted is not None and adapted.overrides[0] == "model.lora.rank=16"
    assert not any("sharding=" in o for o in adapted.overrides)
    assert smallest_change(root, replace(GPU, memory=GIB, cuda=False)) is None


def test_devices_come_last_and_no_more_than_there_are() -> None:
    """70B under an adapter: 37 GiB in four bits, 263 in float32."""
    root = planned("sft", "model=hf", "model.path=meta-llama/Llama-3.1-70B-Instruct", "model.lora.rank=4")
    tight = replace(GPU, memory=34 * GIB)
    assert smallest_change(root, tight) is None
    assert smallest_change(root, replace(tight, count=15)) is None
    shared = smallest_change(root, replace(tight, count=16))
    assert shared is not None and shared.overrides[-2:] == ["sharding=fsdp_full", "sharding.processes=16"]
    supposed = smallest_change(root, replace(tight, count=3, supposed=True))  # a GPU that is not here
    assert supposed is not None and "sharding=fsdp_full" in supposed.overrides
    packed = smallest_change(root, replace(GPU, memory=60 * GIB, count=16))
    assert packed is not None and "model.weights=nf4" in packed.overrides
    assert not any(override.startswith("sharding=") for override in packed.overrides)


def test_an_adapter_that_is_divided_may_leave_its_reference_in_host_memory() -> None:
    """It has a separate one only in that case: its base is the reference of a full adapter."""
    full = ("model=hf", "model.path=Qwen/Qwen2.5-7B", "model.lora.rank=16", "runtime.dtype=bfloat16")
    with pytest.raises(ConfigError, match="its own base"):
        planned("ppo", *full, "sharding.reference=offload")
    sharded = (*full, "sharding=fsdp_full")
    resident, away = (
        plan_stage(planned("ppo", *sharded, f"sharding.reference={where}"), 8) for where in ("resident", "offload")
    )
    # the reference's blocks are bfloat16 there, as the sharded policy computes in it
    reference = frozen_state(PUBLISHED["Qwen/Qwen2.5-7B-Instruct"], halved=True)
    assert resident.resident_bytes - away.resident_bytes == reference.weights


def test_processes_of_a_stage() -> None:
    two = planned("dpo", "sharding=ddp", "sharding.processes=2")
    assert processes(two.config, GPU) == 2
    assert processes(planned("dpo").config, GPU) == 1
    assert Device("cpu", 8 * GIB).share(2) == 4 * GIB and GPU.share(2) == 16 * GIB
    assert Device("cpu", 8 * GIB, local=2).share(16) == 4 * GIB  # of eight machines, each with its own memory
    assert Device("cpu", 8 * GIB, jobs=2).share(2) == 2 * GIB and replace(GPU, jobs=4).share(2) == 4 * GIB


def test_a_machine_is_shared_by_the_jobs_of_a_study_and_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = planned("dpo", "sharding=ddp", "runtime.device=cpu", "runtime.memory_gib=24")
    assert device(stage.config).share(processes(stage.config, device(stage.config))) == 24 * GIB
    monkeypatch.setenv("RLHF_LAB_PROCESSES", "2")
    for name, value in {"RANK": 0, "WORLD_SIZE": 12, "LOCAL_WORLD_SIZE": 3, "MASTER_ADDR": "host"}.items():
        monkeypatch.setenv(name, str(value))
    found = device(stage.config)
    assert processes(stage.config, found) == 12 and found.share(12) == 24 * GIB // 3 // 2


def test_a_server_beside_training_has_its_share_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes 30 % of 80 GiB; rows are sampled there and not by the stage."""
    settings = ("model.heads=2", "runtime.memory_gib=80", "runtime.device=cuda", "rollout=vllm")
    monkeypatch.setattr(ranks, "device", lambda name: name)
    for mode, gib in (("spawn", 56), ("colocate", 56), ("server", 80)):
        urls = ("rollout.urls=[http://127.0.0.1:8000]",) if mode == "server" else ()
        stage = planned("grpo", *settings, f"rollout.mode={mode}", *urls)
        assert device(stage.config).memory == gib * GIB
        plan = plan_stage(stage, cuda=True)
        assert plan.sampler is None and "sampling" not in plan.phases
    assert plan_stage(planned("grpo", "model.heads=2"), cuda=True).sampler is not None


# --- runs


def small(recipe: str, *overrides: str) -> Any:
    return planned(recipe, "model=micro", *ONE_LAYER, *SMALL_WORLD, *overrides)


def test_a_run_that_may_not_fit_is_warned_and_one_that_cannot_is_refused(tmp_path: Path) -> None:
    found = plan_stage(small("sft", f"outputs={tmp_path}"))
    between, below = (found.floor + found.peak) / 2 / GIB, found.floor / 2 / GIB
    lines = memory_lines(small("sft", f"outputs={tmp_path}", f"runtime.memory_gib={between}"))
    assert "may not suffice" in lines[1] and "algorithm.micro_batch_tokens=" in lines[1]
    with pytest.raises(ConfigError, match="sft cannot fit: weights, gradients and optimizer state need"):
        memory_lines(small("sft", f"outputs={tmp_path}", f"runtime.memory_gib={below}"))


def test_a_run_whose_shape_is_unknown_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = write_pairs(tmp_path / "pairs.jsonl", toy_rows(8))
    overrides = ("model=hf", "model.path=nobody/nothing", "data=pairs", f"data.path={data}", f"outputs={tmp_path}")
    (line,) = memory_lines(planned("sft", *overrides))
    assert line.startswith("memory unknown: the shape of nobody/nothing")


def test_a_built_policy_is_read_and_not_guessed(tmp_path: Path) -> None:
    """Before it is built, the tokenizer may have as many tokens as it is allowed; then it has those it has."""
    stage = small("dpo", f"outputs={tmp_path}")
    assert policy_shape(stage).vocabulary == 4096
    save_tiny("llama", tokenizer(["one two three"], 300), Path(stage.needs["policy"].model))
    assert policy_shape(stage).vocabulary < 400
    assert reward_copies(stage)[0].shape.outputs == 1


def test_the_members_of_a_built_ensemble_are_counted(tmp_path: Path) -> None:
    """A directory is the first member itself, and has the others below members/."""
    stage = small("dpo", f"outputs={tmp_path}")
    built = Path(stage.needs["reward"].model)
    save_tiny("llama", tokenizer(["one two three"], 300), built)
    for member in ("1", "2"):
        save_tiny("llama", tokenizer(["one two three"], 300), built / "members" / member)
    assert [model.name for model in reward_copies(stage)] == ["reward bt 0", "reward bt 1", "reward bt 2"]


def test_the_cache_has_the_heads_of_keys() -> None:
    """Llama 3.1 8B: 2 (keys, values) · 32 layers · 8 heads · 128 numbers of 2 bytes = 131,072 bytes a token."""
    assert PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"].kv_bytes(1000, bytes_each=2) == 131_072_000


def test_a_policy_divided_in_bfloat16_is_sampled_from_in_bfloat16() -> None:
    """The sampler reads a full copy of 2 bytes a parameter, and its own matrices and KV cache have 2 too."""
    stage = planned("ppo", "model=hf", "model.path=gpt2-medium", "sharding=fsdp_full", "runtime.dtype=bfloat16")
    shape = PUBLISHED["gpt2-medium"]
    sharded, alone = plan_stage(stage, 2), plan_stage(stage, 1)
    assert sharded.sampler is not None and alone.sampler is not None
    models = [line.copy for line in sharded.lines]
    assert gathered_bytes_to_sample(stage, models, sharded.training, 2) == (2 * shape.parameters, 0)
    assert sharded.sampler.weights == 2 * shape.multiplied and alone.sampler.weights == 4 * shape.multiplied
    assert 2 * sharded.sampler.cache == alone.sampler.cache
