"""ZeRO by DeepSpeed: two gloo processes take the steps of one in every stage, and go on exactly where they stopped."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from processes import together
from support import checked, model_tensors, once
from test_sharding import alone, assert_close_models, assert_same_bits, assert_same_steps, execute_until, run_of, stage

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError, MissingDependency
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.models.build import load_policy
from rlhf_lab.stages.execute import execute
from rlhf_lab.stages.launch.processes import check_launch
from rlhf_lab.training.loop import Interrupted
from rlhf_lab.training.sharding import zero

pytestmark = pytest.mark.slow
installed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs rlhf_lab[deepspeed]")
PLAN = {
    **{("sft", name): 2e-6 for name in ("zero1", "zero2", "zero3")},
    ("sft", "zero3", "sharding.checkpointing=true"): 2e-6,
    ("lora", "zero3"): 5e-6,
    ("reward_model", "zero3"): 5e-4,  # a decorrelated length head: rounding grows by a factor of 100
    ("ppo", "zero3"): 5e-5,
    ("ppo_lora", "zero2"): 5e-5,
    ("ppo_shared", "zero2"): 5e-4,
    ("grpo", "zero2"): 5e-6,
    ("sft", "zero3", "runtime.dtype=bfloat16"): 5e-4,
}
"""(case, strategy, more settings) → largest relative difference of a step's loss and grad_norm from one process."""
RESUMED = (("sft", "zero1"), ("sft", "zero2"), ("ppo", "zero3"))


def position(out: Path, key: tuple[str, ...]) -> Path:
    return out / "-".join(key).replace("=", "_")


def build_all(out: Path, needs: dict[str, str]) -> None:
    for key in PLAN:
        case, name, *more = key
        model_copies: dict[str, int] = {}
        with mock.patch.object(zero.ZeRO, "step", noting(model_copies)):
            execute(stage(case, position(out, key), needs, f"sharding={name}", *more))
        write_json(position(out, key) / "held.json", model_copies)
    for case, name in RESUMED:
        for kind in ("resumed", "stopped"):
            cut = stage(case, out / f"{case}-{name}-{kind}", needs, f"sharding={name}")
            with pytest.raises(Interrupted, match="stopped after step 1 of"):
                execute_until(cut, 1)
            if kind == "resumed":
                execute(cut)


def noting(model_copies: dict[str, int]) -> Any:
    """`ZeRO.step` that also notes how many numbers the main process holds of parameters and of the first moment."""
    step = zero.ZeRO.step

    def noted(self: zero.ZeRO, scale: float) -> None:
        step(self, scale)
        model_copies["parameters"] = sum(p.numel() for part in self.parts.values() for p in part.parameters())
        model_copies["moment"] = sum(state["exp_avg"].numel() for state in self.adamw.state.values() if state)

    return noted


@pytest.fixture(scope="module")
def needs(shared_tmp: Path) -> dict[str, str]:
    out = once(shared_tmp / "zero-needs", lambda out: execute(stage("sft", out, {})))
    return {"policy": stage("sft", out, {}).model}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, needs: dict[str, str]) -> Any:
    return alone(tmp_path_factory.mktemp("one"), needs)


@pytest.fixture(scope="module")
def built(shared_tmp: Path, needs: dict[str, str]) -> Path:
    return once(shared_tmp / "zero-two", lambda out: together(build_all, out, needs))


@installed
@pytest.mark.parametrize("key", PLAN, ids="-".join)
def test_two_processes_take_the_steps_of_one(key: tuple[str, ...], built: Path, single: Any) -> None:
    low = "runtime.dtype=bfloat16" in key
    expected = single(key[0], "bfloat16" if low else "float32")
    assert_same_steps(expected, run_of(position(built, key)), PLAN[key], norms=2e-2 if low else PLAN[key])


@installed
@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_the_saved_model_is_that_of_one_process(name: str, built: Path, single: Any) -> None:
    directory = run_of(position(built, ("sft", name)))
    assert_close_models(single("sft"), directory)
    loaded = load_policy(directory / "model", checked("sft").model)
    saved = model_tensors(directory / "model")
    assert torch.equal(loaded.get_input_embeddings().weight, saved["model.embed_tokens.weight"])
    sizes = [read_json(path / "result.json")["metrics"]["parameters"] for path in (single("sft"), directory)]
    assert sizes[0] == sizes[1] > 0


@installed
def test_a_part_without_gradients_stays_as_it_is(built: Path, single: Any) -> None:
    """The policy while the critic learns alone: a step of AdamW on zeros would change how far its first one goes."""
    expected, found = (
        torch.cat([t.flatten() for t in model_tensors(directory / "model").values()])
        for directory in (single("ppo"), run_of(position(built, ("ppo", "zero3"))))
    )
    assert torch.isclose(found, expected, atol=1e-5).float().mean() > 0.99


@installed
@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_each_process_holds_its_share(name: str, built: Path) -> None:
    """Half of the moments; in stage 3 no matrix between passes, which leaves vectors."""
    directory = position(built, ("sft", name))
    model_copies, tensors = read_json(directory / "held.json"), model_tensors(run_of(directory) / "model")
    full, vectors = (sum(t.numel() for t in tensors.values() if t.ndim <= largest) for largest in (2, 1))
    assert model_copies["moment"] == pytest.approx(full / 2, rel=0.02)
    assert model_copies["parameters"] == (vectors if name == "zero3" else full)


@installed
@pytest.mark.parametrize(("case", "name"), RESUMED)
def test_resumed_equals_uninterrupted_bit_for_bit(case: str, name: str, built: Path) -> None:
    resumed = run_of(built / f"{case}-{name}-resumed")
    assert_same_bits(run_of(position(built, (case, name))), resumed)
    assert "resumed at step 1" in read_json(resumed / "result.json")["notes"]


@installed
def test_another_number_of_processes_is_refused(built: Path, needs: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(built / "sft-zero2-stopped", tmp_path / "out")
    cut = stage("sft", tmp_path / "out", needs, "sharding=zero2")
    with pytest.raises(ArtifactError, match="2 processes of sharding=zero2"):
        execute(cut)
    assert (cut.directory / "checkpoint.pt").exists()


@installed
def test_a_damaged_share_is_noticed(built: Path, needs: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(built / "sft-zero2-stopped", tmp_path / "out")
    cut = stage("sft", tmp_path / "out", needs, "sharding=zero2")
    fraction = cut.directory / "checkpoint-1" / "rank_1.safetensors"
    fraction.write_bytes(fraction.read_bytes()[:-3] + b"abc")
    assert any("rank_1.safetensors is damaged" in note for note in execute(cut)["notes"])


def test_muon_needs_whole_matrices() -> None:
    with pytest.raises(ConfigError, match=r"muon needs full matrices.*fsdp_full"):
        checked("sft", "sharding=zero2", "algorithm.optimizer=muon", "algorithm.muon_lr=0.02")


def test_the_missing_library_is_named_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(MissingDependency, match=r"rlhf_lab\[deepspeed\]"):
        check_launch(checked("sft", "sharding=zero2", "algorithm.optimizer=adamw"))
    assert ranks.world() == 1
