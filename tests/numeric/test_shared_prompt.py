"""Two passes over a shared prompt, and packed rows, equal full rows: log-probabilities, gradients, KL."""

from __future__ import annotations

from typing import Any

import pytest
import test_logprobs
import torch
from test_logprobs import VOCABULARY
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.models.shared_prompt import RowLayout, can_pack, can_take_two_passes, computed_as

SMALL = test_logprobs.SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=8),
    "gpt2": GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=24, eos_token_id=1, bos_token_id=None
    ),
}


def model_of(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[family]).double().eval()


def groups() -> list[tuple[list[int], list[int]]]:
    """Three prompts of different length with 3, 2 and 1 responses of 1 to 9 tokens, shuffled."""
    generator = torch.Generator().manual_seed(2)

    def ids(length: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()

    long, middle, short = ids(15), ids(9), ids(2)
    return [(long, ids(9)), (middle, ids(4)), (long, ids(1)), (short, ids(5)), (long, ids(6)), (middle, ids(2))]


WAYS: tuple[RowLayout, ...] = ("whole rows", "two passes", "packed rows")


def all_ways(function: Any) -> list[Any]:
    """Return the results of `function` with batches computed as full rows, in two passes and packed."""
    results = []
    for way in WAYS:
        with computed_as(way):
            results.append(function())
    return results


@pytest.mark.parametrize("family", CONFIGS)
def test_log_probabilities_and_gradients(family):
    model, batch = model_of(family), TokenBatch.from_rows(groups())
    assert can_take_two_passes(model.base_model) and can_pack(model.base_model)
    weight_N = torch.randn(int((batch.length_B - batch.prompt_len_B).sum()), dtype=torch.float64)

    def run():
        model.zero_grad()
        logps_N = token_logps(model, batch).logps_N
        (logps_N * weight_N).sum().backward()
        return logps_N.detach(), [p.grad.clone() for p in model.parameters()]

    (full, gradient), *others = all_ways(run)
    for logps_N, other_gradient in others:
        assert torch.allclose(full, logps_N, atol=1e-5)
        for one, other in zip(gradient, other_gradient, strict=True):
            assert torch.allclose(one, other, atol=1e-4 * max(1.0, float(one.abs().max())))


def test_what_each_way_computes(monkeypatch):
    """Full rows are 6 of 24. Two passes: 3 prompts of 15, then 6 responses of 9 − 1.

    Packed: each prompt once, and every response without its last token: 15 + 8 + 0 + 5, 9 + 3 + 1 and 2 + 4 slots, in
    one row of at most the slots of all unshared rows, 23 + 15 + 20 + 12 + 10 + 6 = 86, rounded up to 88.
    """
    model, batch = model_of("llama"), TokenBatch.from_rows(groups())
    token_logps(model, batch)  # the trials of a new model are done
    seen: list[tuple[int, ...]] = []
    forward = model.base_model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.base_model, "forward", counted)
    all_ways(lambda: token_logps(model, batch))
    assert seen == [(6, 24), (3, 15), (6, 8), (1, 88)]


def test_rotary_positions_beyond_what_the_config_names():
    """Rows of 24 tokens for 16 positions: a rotary embedding continues to count, and so do the responses' positions."""
    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, max_position_embeddings=16)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0, 0.3)
    batch = TokenBatch.from_rows(groups())
    full, *others = all_ways(lambda: token_logps(model, batch).logps_N.detach())
    assert all((full - other).abs().max() < 1e-5 for other in others)


def test_exact_kl():
    policy, reference = model_of("llama", 0), model_of("llama", 1)
    batch = TokenBatch.from_rows(groups())
    full, *others = all_ways(lambda: exact_kl(policy, reference, batch))
    assert all(torch.allclose(full, other, atol=1e-5) for other in others) and (full > 0).all()


def test_a_model_that_ignores_the_mask_is_not_trusted(monkeypatch):
    """Results of a method are compared with full rows once per model; on a difference it is not used."""
    model = model_of("llama")
    forward = model.base_model.forward
    monkeypatch.setattr(model.base_model, "forward", lambda *a, **k: forward(*a, **{**k, "attention_mask": None}))
    assert not can_take_two_passes(model.base_model)
    assert not can_pack(model.base_model)


@pytest.mark.parametrize("window", [8, 16])
def test_a_sliding_window_is_respected(window):
    """Rows of up to 24 tokens: longer than the window, with prompts on either side of it."""
    torch.manual_seed(0)
    config = MistralConfig(**SMALL, sliding_window=window)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()
    rows = groups()
    together = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    alone = torch.cat([token_logps(model, TokenBatch.from_rows([row])).logps_N for row in rows])
    assert torch.allclose(together, alone, atol=1e-5)


def test_rows_without_a_common_prompt_stay_whole():
    batch = TokenBatch.from_rows([([1, 2], [3]), ([1, 3], [4])])
    assert batch.prompt_of is None and batch.prompts == 2


def test_a_mask_leaves_out_tokens_of_the_loss_not_of_the_context():
    model = model_of("llama")
    rows = groups()
    masks = [[position % 2 == 1 for position in range(len(response))] for _, response in rows]
    learned_N = torch.tensor([learned for mask in masks for learned in mask])

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            every = token_logps(model, TokenBatch.from_rows(rows)).logps_N
            masked = token_logps(model, TokenBatch.from_rows(rows, masks=masks)).logps_N
        return every, masked

    for every, masked in all_ways(run):
        assert torch.allclose(masked, every[learned_N], atol=1e-6)
