"""Packed rows equal full rows, in every family, arithmetic and strategy; and are used if they save time."""

from __future__ import annotations

import copy
from typing import Any

import families
import pytest
import torch
from processes import together
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Gemma3Config, GPTNeoConfig, LlamaConfig, OPTConfig

from rlhf_lab.core import ranks
from rlhf_lab.models import logprobs, shared_prompt
from rlhf_lab.models.encoding import Row, TokenBatch
from rlhf_lab.models.logprobs import note_packing, token_logps
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.packing import PackedRows
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.sharded import checkpoint_blocks, divide, gather
from rlhf_lab.models.shared_prompt import (
    attention_window,
    best_packing,
    can_pack,
    computed_as,
    forbid_two_passes,
    may_be_masked,
)

Gradients = dict[str, torch.Tensor]


def ragged(groups: int, responses: int, *, seed: int = 0, max_length: int = 40) -> list[Row]:
    """Prompts of 1 to `max_length` tokens, and responses of 1 to half as many."""
    generator = torch.Generator().manual_seed(seed)

    def ids(limit: int) -> list[int]:
        count = int(torch.randint(1, limit + 1, (1,), generator=generator))
        return torch.randint(2, 97, (count,), generator=generator).tolist()

    prompts = [ids(max_length) for _ in range(groups)]
    return [(prompt, ids(max_length // 2)) for prompt in prompts for _ in range(responses)]


def logps_and_gradients(model: nn.Module, batch: TokenBatch) -> tuple[torch.Tensor, Gradients]:
    model.zero_grad()
    logps_N = token_logps(model, batch).logps_N
    weight_N = torch.linspace(-1, 1, len(logps_N))
    (logps_N * weight_N).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logps_N.detach(), gradients


def require_equal(model: nn.Module, batch: TokenBatch) -> None:
    """Log-probabilities to 1e-5 nats, gradients to 1e-5 of the largest entry of a parameter, or of 1."""
    assert can_pack(model.base_model)  # type: ignore[arg-type]
    with computed_as("whole rows"):
        expected_N, expected = logps_and_gradients(model, batch)
    with computed_as("packed rows"):
        logps_N, gradients = logps_and_gradients(model, batch)
    assert (logps_N - expected_N).abs().max() < 1e-5
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        scale = max(1.0, float(expected[name].abs().max()))
        assert (gradient - expected[name]).abs().max() < 1e-5 * scale, name


@pytest.mark.parametrize("family", families.FAMILIES)
def test_families(family: str) -> None:
    """Gemma 2 caps its scores and takes eager attention, whose mask is added."""
    require_equal(families.random_model(family), TokenBatch.from_rows(ragged(3, 3)))


@pytest.mark.parametrize(
    "rows", [ragged(4, 2), ragged(6, 1), ragged(1, 1), ragged(1, 5)], ids=["pairs", "unshared", "one row", "one group"]
)
def test_ways_that_rows_share_prompts(rows: list[Row]) -> None:
    require_equal(families.random_model("qwen3"), TokenBatch.from_rows(rows))


def test_eager_attention() -> None:
    model = families.random_model("qwen3", attn_implementation="eager")
    assert model.config._attn_implementation == "eager"  # type: ignore[union-attr]
    require_equal(model, TokenBatch.from_rows(ragged(3, 3)))


def test_an_adapter() -> None:
    model = add_adapter(families.random_model("qwen3"), LoRA(rank=3), 0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    require_equal(model, TokenBatch.from_rows(ragged(3, 3)))


def test_activation_checkpointing() -> None:
    """A packed pass has no cache, so that blocks can be computed again."""
    model = families.random_model("qwen3")
    batch = TokenBatch.from_rows(ragged(3, 3))
    with computed_as("whole rows"):
        expected_N, expected = logps_and_gradients(model, batch)
    checkpoint_blocks(model)
    with computed_as("packed rows"):
        logps_N, gradients = logps_and_gradients(model, batch)
    assert (logps_N - expected_N).abs().max() < 1e-5
    assert all((gradients[name] - expected[name]).abs().max() < 1e-4 for name in expected)


@torch.no_grad()
def test_bfloat16_within_its_rounding() -> None:
    """Packed and full rows are equally far from float32, and each was tried in float32."""
    model = families.random_model("qwen3")
    batch = TokenBatch.from_rows(ragged(4, 4))
    with computed_as("whole rows"):
        exact_N = token_logps(model, batch).logps_N
    gaps = []
    with torch.autocast("cpu", torch.bfloat16):
        assert can_pack(model.base_model)  # type: ignore[arg-type]
        for way in ("whole rows", "packed rows"):
            with computed_as(way):  # type: ignore[arg-type]
                gaps.append(float((token_logps(model, batch).logps_N - exact_N).abs().mean()))
    assert 0 < gaps[1] < 1.5 * gaps[0]


def test_rows_end_to_end_as_flash_attention_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask, from positions alone: transformers gives them to fused attention too, which a CPU has."""
    monkeypatch.setattr(shared_prompt, "takes_flash_attention", lambda config: True)
    seen: list[tuple[int, ...]] = []
    model = families.random_model("qwen3")
    rows = ragged(3, 3)
    require_equal(model, TokenBatch.from_rows(rows))
    forward = model.base_model.forward  # type: ignore[union-attr]

    def counted(**inputs: Any) -> Any:
        seen.append(tuple(inputs["input_ids"].shape))
        return forward(**inputs)

    monkeypatch.setattr(model.base_model, "forward", counted)
    token_logps(model, TokenBatch.from_rows(rows))  # always taken
    assert seen == [(1, sum(len(prompt) + len(response) - 1 for prompt, response in rows))]


# --- where it pays


def test_alike_lengths_stay_padded_and_ragged_ones_are_packed() -> None:
    config = families.random_model("qwen3", hidden_size=128).config
    equal = TokenBatch.from_rows([([2 + row] * 20, [3] * 20) for row in range(8)])
    assert best_packing(config, equal, "whole rows") is None
    batch = TokenBatch.from_rows(ragged(8, 2))
    packing = best_packing(config, batch, "whole rows")
    assert packing is not None and packing.slots < 0.6 * batch.tokens_BT.numel()


def test_the_mask_counts_once_for_all_blocks_that_a_gradient_keeps() -> None:
    """Width 32, 1,016 slots: 768 packed; 98,304 pairs are 98,304 / 6·32 = 512 slots more or, over 4 blocks, 128."""
    config = families.random_model("qwen3", hidden_size=32).config
    batch = TokenBatch.from_rows(ragged(8, 1, max_length=120))
    assert batch.tokens_BT.numel() == 1016
    assert best_packing(config, batch, "whole rows") is None
    packing = best_packing(config, batch, "whole rows", kept_blocks=4)
    assert packing is not None and (packing.slots, packing.pairs) == (768, 98_304)
    assert 768 + 512 > 0.9 * 1016 > 768 + 128


def test_two_passes_are_taken_where_replies_are_alike() -> None:
    """4 prompts of 32, each with 8 responses of 40: packed rows would compute the masked pairs of responses, too."""
    batch = TokenBatch.from_rows([([2 + row // 8] * 32, [3] * 40) for row in range(32)])
    config = families.random_model("qwen3", hidden_size=128).config
    assert best_packing(config, batch, "two passes") is None
    ragged_batch = TokenBatch.from_rows(ragged(4, 8, max_length=100))
    assert best_packing(config, ragged_batch, "two passes") is not None


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("unpacked", ["whole rows", "two passes"])
def test_no_packing_computes_more_than_padded_rows(unpacked: Any, attention: str) -> None:
    """Neither slots nor, where eager attention keeps their probabilities, pairs; for 60 batches."""
    taken = 0
    for seed in range(60):
        hidden = 64 * 4 ** (seed % 4)
        config = LlamaConfig(hidden_size=hidden, attn_implementation=attention)
        batch = TokenBatch.from_rows(ragged(1 + seed % 5, 2 + seed % 7, seed=seed, max_length=200))
        packing = best_packing(config, batch, unpacked)
        if packing is None:
            continue
        taken += 1
        rows, width = batch.tokens_BT.shape
        two_pass_slots = batch.prompts * batch.prompts_width + rows * (batch.responses_width - 1)
        assert packing.slots <= (two_pass_slots if unpacked == "two passes" else 0.9 * rows * width)
        assert attention == "sdpa" or packing.pairs <= rows * width**2
    assert taken > 20


def test_a_sliding_window_that_rows_reach_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = families.random_model("gemma3", sliding_window=16)
    rows = ragged(8, 2)
    monkeypatch.setattr(PackedRows, "of", lambda *arguments: pytest.fail("packed"))
    together_N = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    alone_N = torch.cat([token_logps(model, TokenBatch.from_rows([row])).logps_N for row in rows])
    assert torch.allclose(together_N, alone_N, atol=1e-5)


def test_the_window_of_a_model_with_a_vision_tower_is_that_of_its_text() -> None:
    text = families.config("gemma3", sliding_window=16).to_dict()
    assert attention_window(Gemma3Config(text_config=text)) == 16


def test_rotations_that_change_with_the_longest_row_are_left_to_whole_rows() -> None:
    """Dynamic scaling changes beyond the 64 positions that the model was trained on; linear scaling never does."""
    sizes = {"max_position_embeddings": 64}
    dynamic = families.config("qwen3", **sizes, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    assert may_be_masked(dynamic, 64) and not may_be_masked(dynamic, 65)
    assert may_be_masked(families.config("qwen3", **sizes), 65)


def test_windows_over_columns_are_never_packed() -> None:
    """GPT-Neo's local layers look back over columns: six tokens do not show it, a packed row of 88 would."""
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 128, "window_size": 32}
    config = GPTNeoConfig(vocab_size=97, attention_types=[[["global", "local"], 1]], **sizes)  # type: ignore[arg-type]
    assert not can_pack(AutoModelForCausalLM.from_config(config).base_model)


def test_what_lies_inside_a_backbone_is_not_tried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPT's decoder, or a vision tower, which knows no token ids."""
    tried: list[str] = []
    monkeypatch.setattr(logprobs, "can_pack", lambda backbone: bool(tried.append(type(backbone).__name__)))
    sizes = {
        "hidden_size": 16,
        "ffn_dim": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "word_embed_proj_dim": 16,
    }
    note_packing(AutoModelForCausalLM.from_config(OPTConfig(vocab_size=97, **sizes)))  # type: ignore[arg-type]
    assert tried == ["OPTModel"]


# --- sharded


def check_divided_pass() -> None:
    """Rows of the process, packed under FSDP2 with checkpointing: gradients add up to those of one process."""
    batches = [TokenBatch.from_rows(ragged(4, 4, seed=seed)) for seed in (1, 2)]
    model = families.random_model("qwen3")
    one_process = copy.deepcopy(model)
    expected: Gradients = {}
    with computed_as("whole rows"):
        for batch in batches:
            for name, gradient in logps_and_gradients(one_process, batch)[1].items():
                expected[name] = expected.get(name, 0) + gradient / 2  # FSDP averages over processes
    note_packing(model)
    forbid_two_passes(model)
    divide(model, init_device_mesh("cpu", (2,)), reshard=True)
    checkpoint_blocks(model)
    packed_widths = []
    right = PackedRows.of

    def counted(batch: TokenBatch, packing: Any) -> PackedRows:
        packed_widths.append(packing.width)
        return right(batch, packing)

    PackedRows.of = counted  # type: ignore[method-assign, assignment]
    token_logps_N = token_logps(model, batches[ranks.rank()]).logps_N
    (token_logps_N * torch.linspace(-1, 1, len(token_logps_N))).sum().backward()
    assert len(packed_widths) == 1  # used without a setting, and without a trial between the processes
    for name, parameter in model.named_parameters():
        full = gather(parameter.grad, None)  # type: ignore[arg-type]
        assert (full - expected[name]).abs().max() < 1e-5 * max(1.0, float(expected[name].abs().max())), name


@pytest.mark.slow
def test_two_processes_that_divide_a_model_pack_their_own_rows() -> None:
    together(check_divided_pass)
