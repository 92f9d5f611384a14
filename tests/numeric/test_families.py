"""Gemma, Mixtral, Qwen3-MoE and Phi-3: planned as transformers makes them, and the same numbers in every pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import pytest
import torch
from memory_cases import nbytes, require_counted, saved_for_backward
from test_sampler import flat
from torch import nn

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.shapes import config_shape
from rlhf_lab.memory.state import Training, frozen_state, weight_bytes
from rlhf_lab.memory.work import ComputePrecision, Rows, block_bytes
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import has_linear_head, head_cap, token_logps
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.settings import HuggingFace, LoRA
from rlhf_lab.models.weights import compute_under_autocast, experts, is_packed
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

ALL = list(families.FAMILIES)
PLANNED = [family for family in ALL if family != "phi3"]
MIXTURES = ["mixtral", "qwen3_moe"]
BATCH = TokenBatch.from_rows([([3, 4, 5, 6], [7, 8, 9]), ([5, 6], [7, 8])])


def loaded(family: str, directory: Path, **settings: Any) -> nn.Module:
    return load_policy(families.save(family, directory), HuggingFace(path=str(directory), **settings))


# --- planned


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", PLANNED)
def test_parameters_are_counted_as_transformers_makes_them(family: str, tied: bool) -> None:
    config = families.config(family, tie_word_embeddings=tied)
    require_counted(config_shape(config), config)


@pytest.mark.parametrize("family", PLANNED)
def test_an_adapter_lies_on_linear_layers_and_not_on_experts(family: str) -> None:
    model = families.random_model(family)
    shape = config_shape(model.config)
    add_adapter(model, LoRA(rank=4), 0)
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == shape.adapter(4) == Training(rank=4).trained(shape)
    assert any("mlp" in name for name in trained) == (family not in MIXTURES)


@pytest.mark.parametrize("family", PLANNED)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_block_keeps_what_is_said(family: str, precision: Any) -> None:
    """To the byte; of experts the routing, a few numbers a token, to 1 % of all."""
    rows = Rows(3, 20, 17)
    low = precision == "bfloat16"
    two, three = (saved_bytes(family, layers, rows, low) for layers in (2, 3))
    shape = config_shape(families.config(family))
    # under autocast a copy of a block's matrices is kept too, which a plan counts with the state
    measured = three - two - 2 * low * shape.block_matrices
    assert block_bytes(shape, rows, ComputePrecision(precision)) == pytest.approx(
        measured, rel=0.01 if shape.experts else 0
    )


def saved_bytes(family: str, layers: int, rows: Rows, low: bool) -> int:
    """Bytes that autograd keeps of a forward pass of the trunk, each storage once, without the weights."""
    model: Any = compute_under_autocast(families.random_model(family, num_hidden_layers=layers))
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    ids = torch.randint(2, 97, (rows.rows, rows.width), generator=torch.Generator().manual_seed(0))
    saved = saved_for_backward(lambda tensor: tensor.untyped_storage().data_ptr() in own)
    with saved as kept, torch.autocast("cpu", torch.bfloat16, enabled=low):
        model.base_model(input_ids=ids, use_cache=False)
    return nbytes(kept)


def test_experts_are_all_in_memory_and_few_at_work() -> None:
    """Mixtral 8x7B by hand: 32 blocks of 8 experts, 3·4096·14336 numbers each, of which a token goes through two."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 14336, "head_dim": 128, "num_local_experts": 8, "vocab_size": 32000}
    shape = config_shape(families.config("mixtral", **sizes, tie_word_embeddings=False))
    assert shape.parameters == 46_702_792_704
    assert frozen_state(shape).weights == 4 * shape.parameters
    # one row of 1,000 tokens in bfloat16: 16h + 8h + 2(2h + 2k) + 2·(2·2h + 4·2·14336), and the routing
    h, k = 4096, 1024
    per_token = 16 * h + 8 + 8 * h + 2 * (2 * h + 2 * k) + 4 * 32 + 2 * (4 * h + 8 * 14336) + 80 + 32 + 4
    assert block_bytes(shape, Rows(1, 500, 500), ComputePrecision("bfloat16")) == 1000 * per_token


# --- run


@pytest.mark.parametrize("family", ALL)
def test_sampler_and_forward_pass_agree(family: str, tmp_path: Path) -> None:
    """Replies in groups to prompts of several lengths; the reference is Hugging Face's forward pass, row by row."""
    model: Any = loaded(family, tmp_path)
    assert model.config._attn_implementation == ("eager" if family == "gemma2" else "sdpa")
    assert has_linear_head(model) and head_cap(model) == (3.0 if family == "gemma2" else None)
    prompts = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14]]
    samples = LocalSampler(Local(max_new_tokens=9, max_prompt_tokens=9), [1]).sample(model, prompts, 3, seed=0)
    rows, sampled = flat(samples)
    with torch.no_grad():
        ours = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    expected = families.forward_logps(model, rows)
    assert (ours - expected).abs().max() < 1e-5
    assert (sampled - expected).abs().max() < 1e-5


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_weights_in_bfloat16_give_the_numbers_of_autocast(family: str, tmp_path: Path) -> None:
    """But for the embeddings, which are rounded in both here. Experts would stay float32 under autocast by itself."""
    full: Any = loaded(family, tmp_path)
    embedding = full.get_input_embeddings().weight
    embedding.copy_(embedding.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        expected = token_logps(full, BATCH).logps_N
    stored = loaded(family, tmp_path, weights="bfloat16")
    assert torch.equal(token_logps(stored, BATCH).logps_N, expected)
    if family != "phi3":
        assert weight_bytes(config_shape(stored.config), "bfloat16") == sum(p.nbytes for p in stored.parameters())


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "phi3"])
def test_four_bits(family: str, tmp_path: Path) -> None:
    """An adapter on packed layers; the model's own forward pass draws, and its log-probabilities are training's."""
    pytest.importorskip("bitsandbytes")
    model = add_adapter(loaded(family, tmp_path, weights="nf4", lora=LoRA(4)), LoRA(4), 0)
    assert any(is_packed(parameter) for parameter in model.parameters())
    samples = LocalSampler(Local(max_new_tokens=5, max_prompt_tokens=9), [1]).sample(model, [[5, 6, 7]], 2, seed=0)
    rows, sampled = flat(samples)
    with torch.no_grad():
        ours = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    assert (ours - sampled).abs().max() < 0.1  # both in bfloat16, whose sums have another order


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_not_packed(family: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    assert len(experts(families.random_model(family))) == 2
    with pytest.raises(
        ConfigError, match=r"has experts, whose weights are not linear layers.*set model\.weights=bfloat16"
    ):
        loaded(family, tmp_path, weights="nf4")
