"""A model that one of two processes reads and both divide is the one that is in the files, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from processes import together
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, MixtralConfig

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.models.build import load_policy, load_reward_model
from rlhf_lab.models.lora import add_adapter, save_adapter
from rlhf_lab.models.settings import LoRA, Scratch
from rlhf_lab.models.sharded import divide, full_tensors
from rlhf_lab.models.skeleton import MAIN, receive

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
CONFIGS = {
    "tied": GPT2Config(vocab_size=31, n_embd=16, n_layer=2, n_head=2, n_positions=32),
    "untied": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "experts": MixtralConfig(**SIZES, num_local_experts=2),
    "two rotations": Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"]),
}
CASES = (*CONFIGS, "adapter on untied", "reward tied", "reward untied", "trained adapter on tied")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in bfloat16, so that float32 is made of them when they are loaded, and an adapter."""
    out = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, config in CONFIGS.items():
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(out / name)
    adapted = add_adapter(load_policy(out / "untied", Scratch()), LoRA(rank=2), 0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    save_adapter(adapted, out / "adapter on untied")
    return out


def load(case: str, folders: Path, device: str) -> Any:
    if case.startswith("reward "):
        base = case.removeprefix("reward ")
        return load_reward_model(folders / base, Scratch(), outputs=2, device=device, trained=True)
    if case.startswith("trained adapter on "):
        base = case.removeprefix("trained adapter on ")
        return add_adapter(load_policy(folders / base, Scratch(), device=device, trained=True), LoRA(rank=2), 3)
    return load_policy(folders / case, Scratch(), device=device, trained=True)


def load_and_compare(folders: Path, out: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for case in CASES:
        expected = load(case, folders, "cpu")
        model = load(case, folders, MAIN)
        elsewhere = [parameter.is_meta for parameter in model.parameters()]
        divide(model, mesh, reshard=True)
        tensors = dict(full_tensors(model))
        found[case] = {
            "empty": all(elsewhere) if ranks.rank() else not any(elsewhere),
            "names": [*tensors] == [*expected.state_dict()],
            "values": all(torch.equal(tensors[name], value) for name, value in expected.state_dict().items()),
            "buffers": all(torch.equal(a, b) for a, b in zip(model.buffers(), expected.buffers(), strict=True)),
            "tied": len([*model.parameters()]) == len([*expected.parameters()]),
            "trained": [p.requires_grad for p in model.parameters()]
            == [p.requires_grad for p in expected.parameters()],
        }
        undivided = load(case, folders, MAIN)
        receive(undivided, "cpu")
        values = undivided.state_dict()
        found[case]["received"] = all(torch.equal(values[n], value) for n, value in expected.state_dict().items())
    with pytest.raises(ArtifactError) as caught:
        load_policy(folders / "none", Scratch(), device=MAIN)
    found["error"] = str(caught.value)
    reports = ranks.exchange(found)
    write_json(out / "found.json", reports)


@pytest.fixture(scope="module")
def found(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("found")
    together(load_and_compare, folders, out)
    return read_json(out / "found.json")


@pytest.mark.parametrize("case", CASES)
def test_the_divided_model_is_the_one_in_the_files(case: str, found: list[dict[str, Any]]) -> None:
    assert len(found) > 1
    for rank, report in enumerate(found):
        assert report[case]
        wrong = [what for what, is_right in report[case].items() if not is_right]
        assert not wrong, f"process {rank}: {wrong}"


def test_every_process_hears_why_a_model_cannot_be_read(found: list[dict[str, Any]]) -> None:
    first, second = (report["error"] for report in found)
    assert first == second
    assert "none cannot be loaded as a causal language model" in first
