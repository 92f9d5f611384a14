"""Two gloo processes that shard a stage's work get what one process gets, in every strategy; so does a resumed run.

What is compared is what a run leaves: every logged number of every step, the model, the evaluation of the policies.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from processes import together
from support import SMALL_WORLD, model_tensors, once, planned

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, read_jsonl, write_json
from rlhf_lab.stages.execute import execute
from rlhf_lab.training import loop
from rlhf_lab.training.loop import Interrupted

pytestmark = pytest.mark.slow

SIZE = ("model.hidden=16", "model.layers=2", "model.heads=2", "algorithm.log_every_steps=1")
STEPS = ("algorithm.batch_size=16", "algorithm.epochs=0.5", "algorithm.optimizer=adamw", "algorithm.lr=0.01")
PAIRS = (*STEPS, "needs.reward=null")
SAMPLES = (
    *("needs.reward=null", "reward=length", "algorithm.lr=0.01", "algorithm.batch_size=8", "algorithm.epochs=1"),
    *("algorithm.prompts_per_iteration=8", "algorithm.iterations=2"),
)
CASES = {
    "sft": ("sft", *STEPS, "algorithm.eval_every_steps=2", "algorithm.micro_batch_tokens=200"),
    "gpt2": ("sft", *STEPS, "model.family=gpt2"),
    "muon": ("sft", *STEPS, "algorithm.optimizer=muon", "algorithm.muon_lr=0.01"),
    "dpo": ("dpo", *PAIRS),
    "kto": ("dpo", "algorithm=kto", *PAIRS),
    "lora": ("dpo", *PAIRS, "model.lora.rank=2"),
    "reward_model": ("reward_model", *STEPS, "algorithm.members=2", "algorithm.length_head=true"),
    "ppo": (
        *("ppo", *SAMPLES, "algorithm.critic=zero", "algorithm.critic_warmup=1"),
        *("algorithm.ptx_weight=0.1", "algorithm.target_kl=0.5"),
    ),
    # policy and critic are adapters on one base, but for strategies that shard it
    "ppo_lora": ("ppo", *SAMPLES, "algorithm.critic=zero", "algorithm.critic_warmup=1", "model.lora.rank=2"),
    "ppo_shared": ("ppo", *SAMPLES, "algorithm.critic=shared", "algorithm.critic_warmup=0"),
    "grpo": ("grpo", *SAMPLES, "algorithm.group_size=2"),
    "dpo_iterative": (
        *("dpo_iterative", "algorithm.lr=0.003", "algorithm.batch_size=8", "needs.baseline=null"),
        *("algorithm.prompts_per_round=8", "algorithm.rounds=2"),
    ),
}
FULL = "sharding=fsdp_full"
STRATEGIES = {
    "ddp": ("sharding=ddp",),
    "fsdp_grad_op": ("sharding=fsdp_grad_op",),
    "fsdp_full": (FULL,),
    "checkpointing": (FULL, "sharding.checkpointing=true"),
    "reference_sharded": (FULL, "sharding.reference=sharded"),
    "reference_offload": (FULL, "sharding.reference=offload"),
    "by_block": (FULL, "sharding.sampling=block", "sharding.reference=sharded"),
    "bfloat16": (FULL, "runtime.dtype=bfloat16", "sharding.reference=sharded"),
}
PLAN = {
    **{("sft", strategy): 2e-6 for strategy in ("ddp", "fsdp_grad_op", "fsdp_full", "checkpointing")},
    **{("dpo", strategy): 5e-6 for strategy in ("fsdp_full", "reference_sharded", "reference_offload")},
    **{(case, "fsdp_full"): 5e-6 for case in ("kto", "lora", "grpo")},
    ("lora", "ddp"): 5e-6,
    ("grpo", "by_block"): 5e-6,
    **{(case, strategy): 5e-5 for case in ("ppo", "ppo_lora") for strategy in ("ddp", "fsdp_full")},
    ("ppo_shared", "fsdp_full"): 5e-5,
    ("reward_model", "fsdp_grad_op"): 5e-5,
    ("dpo_iterative", "ddp"): 5e-5,
    ("muon", "fsdp_full"): 1e-3,  # its iteration runs in bfloat16
    ("gpt2", "bfloat16"): 5e-4,
    ("dpo", "bfloat16"): 5e-3,
}
"""(case, strategy) → largest relative difference of a step's loss and grad_norm from one process in the same dtype."""


def stage(case: str, out: Path, needs: dict[str, str], *more: str) -> Any:
    recipe, *overrides = CASES[case]
    roles = {"sft": (), "dpo_iterative": ("policy", "reward")}.get(recipe, ("policy",))
    chosen = [f"needs.{role}={needs[role]}" for role in roles]
    return planned(recipe, *SMALL_WORLD, *SIZE, *overrides, *chosen, *more, f"outputs={out}")


def build_all(out: Path, needs: dict[str, str]) -> None:
    for case, strategy in PLAN:
        execute(stage(case, out / f"{case}-{strategy}", needs, *STRATEGIES[strategy]))


@pytest.fixture(scope="module")
def needs(shared_tmp: Path) -> dict[str, str]:
    """The models that stages start from."""
    return read_json(once(shared_tmp / "sharding-needs", build_needs) / "needs.json")


def build_needs(out: Path) -> None:
    found: dict[str, str] = {}
    for role, case in (("policy", "sft"), ("reward", "reward_model")):
        built = stage(case, out, found)
        execute(built)
        found[role] = built.model
    write_json(out / "needs.json", found)


@pytest.fixture(scope="module")
def built(shared_tmp: Path, needs: dict[str, str]) -> Path:
    """All cases under all their strategies, by two processes."""
    return once(shared_tmp / "sharding-two", lambda out: together(build_all, out, needs))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, needs: dict[str, str]) -> Any:
    return alone(tmp_path_factory.mktemp("one"), needs)


def alone(out: Path, needs: dict[str, str]) -> Callable[..., Path]:
    """(case, dtype) → directory of the stage as one process builds it, once."""

    @cache
    def directory(case: str, dtype: str = "float32") -> Path:
        found = stage(case, out / f"{case}-{dtype}", needs, f"runtime.dtype={dtype}")
        execute(found)
        return found.directory

    return directory


def steps(directory: Path) -> list[dict[str, float]]:
    return [row for row in read_jsonl(directory / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize(("case", "strategy"), PLAN)
def test_two_processes_take_the_steps_of_one(case: str, strategy: str, built: Path, single: Any) -> None:
    tolerance = PLAN[case, strategy]
    low = strategy == "bfloat16"
    expected = single(case, "bfloat16" if low else "float32")
    assert_same_steps(expected, run_of(built / f"{case}-{strategy}"), tolerance, norms=2e-2 if low else tolerance)


def run_of(out: Path) -> Path:
    (directory,) = (out / "runs").glob("*-*")
    return directory


def assert_same_steps(one: Path, other: Path, tolerance: float, norms: float) -> None:
    """Every logged number has the same place; losses and gradient norms differ relatively by these at most."""
    expected, found = steps(one), steps(other)
    assert [(row["step"], row["units"]) for row in found] == [(row["step"], row["units"]) for row in expected]
    assert len(found) >= 2
    for row, other_row in zip(expected, found, strict=True):
        assert row.keys() == other_row.keys()
        for name in [name for name in row if name == "loss" or name.startswith("grad_norm")]:
            relative = tolerance if name == "loss" else norms
            assert other_row[name] == pytest.approx(row[name], rel=relative, abs=1e-6), name


def assert_close_models(one: Path, other: Path) -> None:
    expected, found = (model_tensors(directory / "model") for directory in (one, other))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.allclose(found[name], tensor, atol=2e-5), name


def losses(directory: Path) -> list[float]:
    return [row["loss"] for row in steps(directory)]


def assert_same_bits(one: Path, other: Path) -> None:
    expected, found = (model_tensors(directory / "model") for directory in (one, other))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(one) == losses(other)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp_grad_op", "fsdp_full", "checkpointing"])
def test_the_model_is_that_of_one_process(strategy: str, built: Path, single: Any) -> None:
    assert_close_models(single("sft"), run_of(built / f"sft-{strategy}"))


@pytest.mark.parametrize(("case", "strategy"), [("dpo", "fsdp_full"), ("ppo", "ddp"), ("grpo", "fsdp_full")])
def test_policies_are_evaluated_alike(case: str, strategy: str, built: Path, single: Any) -> None:
    """Responses are sampled by both processes from one matrix of noise: they are the very same."""
    directory = run_of(built / f"{case}-{strategy}")
    expected, found = (read_jsonl(path / "evaluation.jsonl") for path in (single(case), directory))
    same = [a["response"] == b["response"] for a, b in zip(expected, found, strict=True)]
    assert sum(same) >= 0.9 * len(same)  # a draw near the edge of two tokens may fall on the other side
    policies = [policy["name"] for policy in read_jsonl(directory / "policies.jsonl")]
    assert policies == [policy["name"] for policy in read_jsonl(single(case) / "policies.jsonl")]


def test_strategies_of_the_reference_agree(built: Path) -> None:
    resident, sharded, offload = (
        [(row["loss"], row["margin"]) for row in steps(run_of(built / f"dpo-{name}"))]
        for name in ("fsdp_full", "reference_sharded", "reference_offload")
    )
    assert resident == sharded == offload


RESUMED = {"sft": "fsdp_full", "ppo": "fsdp_full", "dpo_iterative": "ddp", "reward_model": "fsdp_grad_op"}


def stop_and_go_on(out: Path, needs: dict[str, str]) -> None:
    """Stop each stage after its first step, then build it to the end; leave one that is stopped, too."""
    for case, strategy in RESUMED.items():
        for name, go_on in (("resumed", True), ("stopped", False)):
            in_background = f"checkpoint.background={str(go_on).lower()}"
            cut = stage(case, out / f"{case}-{name}", needs, *STRATEGIES[strategy], in_background)
            with pytest.raises(Interrupted, match="stopped after step 1 of"):
                execute_until(cut, 1)
            if go_on:
                execute(cut)


def execute_until(cut: Any, step: int) -> None:
    """Build a stage whose last process gets a signal during that step."""
    taken, gradients = [], loop._accumulate_gradients

    def signalled(*arguments: Any) -> Any:
        taken.append(gradients(*arguments))
        if len(taken) == step and ranks.rank() == ranks.world() - 1:
            signal.raise_signal(signal.SIGTERM)
        return taken[-1]

    with mock.patch.object(loop, "_accumulate_gradients", signalled):
        execute(cut)


@pytest.fixture(scope="module")
def stopped(shared_tmp: Path, needs: dict[str, str]) -> Path:
    return once(shared_tmp / "sharding-stopped", lambda out: together(stop_and_go_on, out, needs))


@pytest.mark.parametrize("case", RESUMED)
def test_resumed_equals_uninterrupted_bit_for_bit(case: str, stopped: Path, built: Path) -> None:
    resumed = run_of(stopped / f"{case}-resumed")
    assert_same_bits(run_of(built / f"{case}-{RESUMED[case]}"), resumed)
    result = read_json(resumed / "result.json")
    assert result["status"] == "completed" and "resumed at step 1" in result["notes"]
    assert not list(resumed.glob("checkpoint*"))


@pytest.mark.parametrize("case", RESUMED)
def test_one_process_goes_on_where_two_stopped(
    case: str, stopped: Path, single: Any, needs: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(stopped / f"{case}-stopped", tmp_path / "out")
    cut = stage(case, tmp_path / "out", needs, "sharding=none")
    assert (cut.directory / "checkpoint.pt").exists()
    assert "resumed at step 1" in execute(cut)["notes"]
    assert losses(cut.directory) == pytest.approx(losses(single(case)), rel=1e-4, abs=1e-6)


def test_two_processes_go_on_where_one_stopped(needs: dict[str, str], single: Any, tmp_path: Path) -> None:
    cut = stage("sft", tmp_path, needs, "sharding=none")
    with pytest.raises(Interrupted):
        execute_until(cut, 1)
    together(finish, tmp_path, needs)
    assert losses(cut.directory) == pytest.approx(losses(single("sft")), rel=1e-5)


def finish(out: Path, needs: dict[str, str]) -> None:
    result = execute(stage("sft", out, needs, FULL))
    assert "resumed at step 1" in result["notes"] or result["notes"] == []


COPIES = (FULL, "sharding.replicas=2")
"""Two copies of a model, each sharded over half of the processes (HSDP)."""
OF_COPIES = {"sft": (), "dpo": ("sharding.reference=sharded",), "muon": ()}
"""Case → settings, for four processes."""


def build_copies(out: Path, needs: dict[str, str]) -> None:
    """Build stages with two copies. Stop one after its first step, and build another one to the end after a stop."""
    for case, more in OF_COPIES.items():
        execute(stage(case, out / case, needs, *COPIES, *more))
    for name, go_on in (("resumed", True), ("stopped", False)):
        cut = stage("sft", out / name, needs, *COPIES)
        with pytest.raises(Interrupted):
            execute_until(cut, 1)
        if go_on:
            execute(cut)


@pytest.fixture(scope="module")
def copies(shared_tmp: Path, needs: dict[str, str]) -> Path:
    return once(shared_tmp / "sharding-copies", lambda out: together(build_copies, out, needs, processes=4))


@pytest.mark.parametrize("case", OF_COPIES)
def test_four_processes_with_two_copies_take_the_steps_of_one(case: str, copies: Path, single: Any) -> None:
    directory, tolerance = run_of(copies / case), PLAN[case, "fsdp_full"]
    assert_same_steps(single(case), directory, tolerance, norms=tolerance)
    if case == "sft":
        assert_close_models(single(case), directory)


def test_a_process_of_two_copies_has_the_shard_of_two_processes(copies: Path, built: Path) -> None:
    """Four processes hold two copies, so each has one half of the model, as each of two processes without copies."""
    directories = run_of(built / "sft-fsdp_full"), run_of(copies / "sft")
    expected, found = (read_json(path / "result.json")["training"] for path in directories)
    for name in ("memory/parameters", "memory/gradients", "memory/optimizer"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6), name


def test_a_run_of_two_copies_resumes_bit_for_bit(copies: Path) -> None:
    full, resumed = (run_of(copies / name) for name in ("sft", "resumed"))
    assert_same_bits(full, resumed)
    assert "resumed at step 1" in read_json(resumed / "result.json")["notes"]


def test_one_process_goes_on_where_two_copies_stopped(
    copies: Path, single: Any, needs: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(copies / "stopped", tmp_path / "out")
    cut = stage("sft", tmp_path / "out", needs, "sharding=none")
    assert "resumed at step 1" in execute(cut)["notes"]
    assert losses(cut.directory) == pytest.approx(losses(single("sft")), rel=1e-4, abs=1e-6)


def odd(out: Path, needs: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"sharding\.replicas=3 does not divide the 2 processes "):
        execute(stage("sft", out, needs, FULL, "sharding.replicas=3"))


def test_copies_that_do_not_divide_the_processes_are_refused(needs: dict[str, str], tmp_path: Path) -> None:
    together(odd, tmp_path, needs)


def test_a_damaged_shard_is_noticed(stopped: Path, needs: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(stopped / "sft-stopped", tmp_path / "out")
    cut = stage("sft", tmp_path / "out", needs, "sharding=none")
    (shard,) = cut.directory.glob("checkpoint-1/rank_1.safetensors")
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    result = execute(cut)
    assert any(note.startswith("started over") and "rank_1.safetensors is damaged" in note for note in result["notes"])
