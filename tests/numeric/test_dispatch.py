"""`model.dispatch`: frozen models with blocks in memory and on disk compute what the same model does in one place."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from families import TEXTS, save
from support import ONE_LAYER, SMALL_WORLD, checked, command_inside, gpt2_tokenizer, planned, save_tiny
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.memory.show import derivation
from rlhf_lab.models import dispatch
from rlhf_lab.models.block_placement import GIB, place_blocks
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.dispatch import placement_of
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Dispatch, HuggingFace, RoleDispatch
from rlhf_lab.models.sharded import full_tensors
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

pytestmark = pytest.mark.slow

KIB = 2**10
FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")


def gib(count: float) -> float:
    return count / GIB


def saved(family: str, directory: Path) -> Path:
    """A checkpoint of two blocks with a tokenizer."""
    if family in ("gpt2", "llama", "qwen2"):
        return save_tiny(family, gpt2_tokenizer(TEXTS), directory)
    return save(family, directory)


def limits_for_one_block(directory: Path, outputs: int = 0) -> RoleDispatch:
    """Return limits with which the parts outside the blocks and the first of two blocks are in memory."""
    auto: Any = AutoModelForSequenceClassification if outputs else AutoModelForCausalLM
    model = auto.from_pretrained(directory, dtype=torch.float32)
    total = sum(p.numel() * 4 for p in model.parameters())
    blocks = [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]
    block = sum(p.numel() * 4 for p in blocks[0].parameters())
    return RoleDispatch(host_gib=gib(total - block))


def batch_of(directory: Path) -> TokenBatch:
    encoder = load_encoder(directory, HuggingFace(path=str(directory)))
    rows = [encoder.row(f"\n\nHuman: {text}\n\nAssistant:", f" {text}", 64) for text in TEXTS[:6]]
    return TokenBatch.from_rows(rows, "cpu")


def loaded(directory: Path, weights: Any, limits: RoleDispatch) -> tuple[nn.Module, nn.Module]:
    """Return the reference of a directory, spread and in one place."""
    plain = HuggingFace(path=str(directory), weights=weights)
    spread = HuggingFace(path=str(directory), weights=weights, dispatch=limits)
    return load_policy(directory, spread, role="reference"), load_policy(directory, plain, role="reference")


def test_blocks_fill_places_in_order() -> None:
    """30 outside the blocks and blocks of 10: 20 + 40 + 20 + 10 bytes at 50 + 40 + 25 and the rest."""
    limits = Dispatch(gpu_gib=gib(50), gpus=2, host_gib=gib(25))
    placement = place_blocks(30, [10] * 10, limits, cuda=True)
    assert placement.places == (0, 0, 1, 1, 1, 1, 1, "cpu", "cpu", "disk")
    assert placement.bytes_at == {0: 50, 1: 50, "cpu": 20, "disk": 10}
    assert placement.first == 0 and placement.moves_blocks
    assert place_blocks(30, [10, 10], limits, cuda=True, first_gpu=3).places == (3, 3)
    on_cpu = place_blocks(10, [10, 10], limits, cuda=False)  # without a GPU, host memory is the first device
    assert on_cpu.places == ("cpu", "disk") and on_cpu.first == "cpu" and on_cpu.moves_blocks
    assert not place_blocks(10, [10, 10], Dispatch(gpu_gib=gib(50)), cuda=True).moves_blocks
    # a smaller block does not go back to a place that was full
    assert place_blocks(0, [30, 30, 5], Dispatch(gpu_gib=gib(40)), cuda=True).places == (0, "cpu", "cpu")
    with pytest.raises(ConfigError, match=r"dispatch.host_gib=.* raise the limit"):
        place_blocks(30, [10], limits, cuda=False)


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_one_place(family: str, weights: Any, tmp_path: Path) -> None:
    directory = saved(family, tmp_path / family)
    limits = limits_for_one_block(directory)
    spread, plain = loaded(directory, weights, limits)
    placement = placement_of(spread)
    assert placement is not None and placement_of(plain) is None
    if weights == "float32":
        assert placement.places == ("cpu", "disk")
    batch = batch_of(directory)
    with torch.no_grad():
        assert torch.equal(token_logps(spread, batch).logps_N, token_logps(plain, batch).logps_N)


def test_all_blocks_on_disk_in_files_of_bfloat16(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).save_pretrained(directory)
    batch = batch_of(directory)
    matrices, norm = 2 * 32 * len(gpt2_tokenizer(TEXTS)), 32  # outside the blocks
    for weights, bytes_each in {"float32": 4, "bfloat16": 2}.items():
        limits = RoleDispatch(host_gib=gib(bytes_each * matrices + 4 * norm))
        spread, plain = loaded(directory, weights, limits)
        with torch.no_grad():
            assert torch.equal(token_logps(spread, batch).logps_N, token_logps(plain, batch).logps_N)
        placement = placement_of(spread)
        assert placement is not None and placement.places == ("disk", "disk")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_scores_are_those_of_one_place(family: str, tmp_path: Path) -> None:
    directory = saved(family, tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=1)
    nn.init.normal_(model.score.weight)
    model.save_pretrained(directory)
    limits = limits_for_one_block(directory, outputs=1)
    spread = load_reward_model(directory, HuggingFace(path=str(directory), dispatch=limits))
    plain = load_reward_model(directory, HuggingFace(path=str(directory)))
    batch = batch_of(directory)
    placement = placement_of(spread)
    assert placement is not None and placement.places == ("cpu", "disk")
    with torch.no_grad():
        assert torch.equal(reward_scores(spread, batch), reward_scores(plain, batch))
    trained = load_reward_model(directory, HuggingFace(path=str(directory), dispatch=limits), trained=True)
    assert placement_of(trained) is None


def test_values_exist_only_within_passes_and_the_files_end_with_the_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(dispatch, "scratch_dir", lambda: tmp_path)
    directory = saved("llama", tmp_path / "model")
    spread, plain = loaded(directory, "float32", limits_for_one_block(directory))
    placement = placement_of(spread)
    assert placement is not None

    def bytes_on(kind: str, model: nn.Module) -> int:
        return sum(p.numel() * p.element_size() for p in model.parameters() if p.device.type == kind)

    (folder,) = tmp_path.glob("dispatch-*")
    on_disk = sum(file.stat().st_size for file in folder.glob("*.dat"))
    for _ in range(2):
        assert bytes_on("cpu", spread) == placement.bytes_at["cpu"]
        assert bytes_on("meta", spread) == placement.bytes_at["disk"] == on_disk
        with torch.no_grad():
            token_logps(spread, batch_of(directory))
    read = {name: tensor.clone() for name, tensor in full_tensors(spread)}
    assert all(torch.equal(read[name], tensor) for name, tensor in plain.state_dict().items())
    del spread
    gc.collect()  # hooks and model refer to each other
    assert not list(tmp_path.glob("dispatch-*"))


def test_a_spread_model_is_sampled_by_its_own_forward_pass(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path / "model")
    settings = HuggingFace(path=str(directory))
    plain = load_policy(directory, settings)
    spread = load_policy(directory, settings, limits=limits_for_one_block(directory))
    encoder = load_encoder(directory, settings)
    prompts = [encoder.prompt(f"\n\nHuman: {text}\n\nAssistant:") for text in TEXTS[:3]]
    sampler = LocalSampler(Local(max_new_tokens=8), encoder.stop_ids)
    rows = [
        [[row.token_ids for row in rows] for rows in sampler.sample(model, prompts, 2, 0, temperature=0).rows_BG]
        for model in (spread, plain)
    ]
    assert rows[0] == rows[1]


def test_files_that_cannot_be_read_by_name(tmp_path: Path) -> None:
    limits = RoleDispatch(host_gib=1)
    hub = saved("gpt2", tmp_path / "gpt2")
    # the files of gpt2 on the hub are those of the backbone, without the prefix `transformer.`
    AutoModelForCausalLM.from_pretrained(hub).transformer.save_pretrained(hub)
    with pytest.raises(ArtifactError, match=r"its files have no tensor transformer.*save it again"):
        load_policy(hub, HuggingFace(path=str(hub), dispatch=limits), role="reference")
    experts = saved("mixtral", tmp_path / "mixtral")
    with pytest.raises(ConfigError, match="files store each expert separately"):
        load_policy(experts, HuggingFace(path=str(experts), dispatch=limits), role="reference")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("model.weights_of={reward: nf4}", "model.lora.rank=4"), "reward models are stored as nf4"),
        (("sharding=fsdp_full",), "the reference cannot also be placed by sharding=fsdp"),
        (("sharding.reference=offload",), "the reference cannot also be placed by sharding=none"),
        (("sharding=ddp", "model.dispatch.gpus=2"), "the other GPUs belong to other processes"),
    ],
)
def test_what_cannot_be_spread_is_refused(overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        checked("dpo", "model.dispatch.host_gib=1", *overrides)


def test_the_plan_places_blocks_as_the_loader_does(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path / "model")
    limits = limits_for_one_block(directory)
    stage = planned(
        "dpo",
        "model=hf",
        f"model.path={directory}",
        f"needs.policy={directory}",
        "needs.reward=null",
        f"model.dispatch.host_gib={limits.host_gib}",
    )
    plan = plan_stage(stage)
    (reference,) = (line for line in plan.lines if line.copy.reference)
    spread, _ = loaded(directory, "float32", limits)
    assert reference.placement == placement_of(spread)
    assert reference.placement is not None
    assert reference.state.weights == reference.placement.bytes_at["cpu"]
    (text,) = (line for line in derivation(plan) if "dispatched" in line)
    assert text.startswith("reference: dispatched, host memory (embeddings, head, block 0) ")
    assert "; disk (block 1) " in text
    # on a card, host memory holds what exceeds the card
    (on_card,) = (line for line in plan_stage(stage, cuda=True).lines if line.copy.reference)
    assert on_card.placement is not None and on_card.placement.places == (0, 0)


def test_a_run_does_not_depend_on_where_its_frozen_models_are(tmp_path: Path) -> None:
    """DPO whose reference and reward model have one block of two on disk."""
    size = (*SMALL_WORLD, *ONE_LAYER, "model.layers=2", "algorithm.epochs=1")
    results = []
    for name, more in {"plain": (), "spread": ("model.dispatch.host_gib=5e-5",)}.items():
        (tmp_path / name).mkdir()
        status, out = command_inside(tmp_path / name, "+recipe=dpo", *size, *more)
        assert status == 0, out
        (directory,) = (tmp_path / name / "outputs" / "runs").glob("dpo-*")
        results.append((directory.name, read_json(directory / "result.json")["metrics"]))
    assert results[0] == results[1]  # also the key of the stage
