"""`token_logps`, `exact_kl` and `reward_scores` against float64 references written out in full."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
)

from rlhf_lab.models import logprobs
from rlhf_lab.models.build import reward_scores
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import _LinearLogProb, exact_kl, has_linear_head, head_cap, token_logps
from rlhf_lab.models.sharded import cast_blocks, unsharded
from rlhf_lab.models.truncation import EVERYTHING

VOCABULARY = 97
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "gpt2": GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=64, eos_token_id=1, bos_token_id=None
    ),
    "gemma2": Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0),
    "granite": GraniteConfig(**SMALL, logits_scaling=0.5),
}


def build(family: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2)
    return model


def rows() -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(2)

    def ids(length: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()

    return [(ids(5), ids(7)), (ids(2), ids(1)), (ids(8), ids(3)), (ids(1), ids(9))]


def reference(model: nn.Module, temperature: float) -> tuple[Tensor, list[Tensor]]:
    """Row by row, no padding, float64: log-probabilities of the response tokens, and all log-softmaxes before them."""
    exact = model if next(model.parameters()).dtype == torch.float64 else copy.deepcopy(model).double()
    logps, tables = [], []
    for prompt, response in rows():
        table = (exact(torch.tensor([prompt + response])).logits[0] / temperature).log_softmax(-1)
        table = table[len(prompt) - 1 : len(prompt) + len(response) - 1]
        logps.append(table.gather(1, torch.tensor(response)[:, None])[:, 0])
        tables.append(table)
    return torch.cat(logps), tables


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equal_the_full_log_softmax(family: str, temperature: float) -> None:
    model = build(family)
    assert has_linear_head(model) == (family != "granite")
    with torch.no_grad():
        found = token_logps(model, TokenBatch.from_rows(rows()), temperature=temperature)
        expected, _ = reference(model, temperature)
    assert found.logps_N.dtype == torch.float32
    assert (found.logps_N - expected).abs().max() < 1e-5
    assert found.row_N.tolist() == [0] * 7 + [1] + [2] * 3 + [3] * 9
    sums = torch.stack([part.sum() for part in expected.split([7, 1, 3, 9])])
    assert (found.sum_B() - sums).abs().max() < 1e-4


@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_a_vocabulary_of_a_few_tokens(vocabulary: int) -> None:
    """The short inputs that models are tried on have no token beyond the vocabulary. Two rows have one prompt."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, "vocab_size": vocabulary})).eval()
    batch = TokenBatch.from_rows([([0, 1, 0, 1], [1, 0]), ([0, 1, 0, 1], [1, 1])])
    with torch.no_grad():
        table_BTV = model(batch.tokens_BT).logits.double().log_softmax(-1)
        expected = torch.stack([table_BTV[0, 3, 1], table_BTV[0, 4, 0], table_BTV[1, 3, 1], table_BTV[1, 4, 1]])
        assert has_linear_head(model)
        assert (token_logps(model, batch).logps_N - expected).abs().max() < 1e-5


@pytest.mark.parametrize("vocabulary", [3, VOCABULARY])
def test_a_cap_far_above_the_logits_of_an_untrained_model_is_seen(vocabulary: int) -> None:
    """Logits of about 0.1 under Gemma 2's cap of 30 are changed by 0.1³/(3·30²) = 4e-7, those of 20 by 2.5."""
    torch.manual_seed(0)
    config = Gemma2Config(**{**SMALL, "vocab_size": vocabulary}, head_dim=8, final_logit_softcapping=30.0)
    model = AutoModelForCausalLM.from_config(config).eval()
    batch = TokenBatch.from_rows([([0, 1], [2, 1, 0])])
    assert has_linear_head(model) and head_cap(model) == 30
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(300)
        logits_TV = model(batch.tokens_BT).logits[0]
        assert logits_TV.abs().max() > 10
        expected = logits_TV.double().log_softmax(-1)[[1, 2, 3], [2, 1, 0]]
        assert (token_logps(model, batch).logps_N - expected).abs().max() < 1e-5


def test_a_scale_of_the_logits_near_one_is_seen() -> None:
    config = GraniteConfig(**SMALL, logits_scaling=1.0001)
    assert not has_linear_head(AutoModelForCausalLM.from_config(config).eval())


def test_a_row_without_prompt_starts_at_its_second_token() -> None:
    batch = TokenBatch.from_rows([([], [5, 6, 7])])
    assert token_logps(build("llama"), batch).logps_N.shape == (2,)


@pytest.mark.parametrize("family", CONFIGS)
def test_gradient_equals_autograd_through_the_full_logits(family: str) -> None:
    model = build(family)
    weight_N = torch.linspace(-1, 2, 20)
    (token_logps(model, TokenBatch.from_rows(rows()), temperature=0.8).logps_N * weight_N).sum().backward()
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    (reference(exact, 0.8)[0] * weight_N).sum().backward()
    for (name, p), q in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert (p.grad - q.grad).abs().max() < 1e-4 * max(1.0, float(q.grad.abs().max())), name


def head_inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6, 5, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(11, generator=generator, dtype=dtype, requires_grad=True)
    return x, weight, bias, torch.tensor([0, 10, 3, 3, 7, 1])


@pytest.mark.parametrize("kept", [2**27, 0])
@pytest.mark.parametrize("chunk", [2**24, 22])
@pytest.mark.parametrize("cap", [None, 1.5])
def test_gradient_of_the_head_chunked_or_not_kept_or_recomputed_capped_or_not(
    monkeypatch: pytest.MonkeyPatch, kept: int, chunk: int, cap: float | None
) -> None:
    """22 entries are 2 tokens of 11 logits: three chunks. Logits z of several nats are capped at 1.5·tanh(z/1.5)."""
    monkeypatch.setattr(logprobs, "KEPT_ENTRIES", kept)
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", chunk)
    monkeypatch.setattr(logprobs, "CHUNK_TOKENS", 1)
    x, weight, bias, target = head_inputs(torch.float32)
    upstream = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0])
    found = _LinearLogProb.apply(x, weight, bias, target, 1.25, EVERYTHING, cap)
    grads = torch.autograd.grad((found * upstream).sum(), [x, weight, bias])
    exact = [part.detach().double().requires_grad_() for part in (x, weight, bias)]
    logits = exact[0] @ exact[1].T + exact[2]
    if cap:
        logits = cap * (logits / cap).tanh()
    simple = (logits * 1.25).log_softmax(1).gather(1, target[:, None])[:, 0]
    expected = torch.autograd.grad((simple * upstream).sum(), exact)
    assert (found - simple).abs().max() < 1e-5
    for a, b in zip(grads, expected, strict=True):
        assert (a - b).abs().max() < 1e-5


def test_gradcheck() -> None:
    """Finite differences in float32 arithmetic, so with a wide step."""
    x, weight, bias, target = head_inputs(torch.float32)

    def head(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _LinearLogProb.apply(x, weight, bias, target, 0.7, EVERYTHING)

    assert torch.autograd.gradcheck(head, (x, weight, bias), eps=1e-2, atol=1e-2, rtol=1e-2, nondet_tol=0.0)


@pytest.mark.parametrize("chunk", [1, 48])
def test_gradient_of_a_head_in_bfloat16(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Gradient of 600 tokens whose terms have one sign, against float64: 2⁻⁷ of the largest entry.

    Logits and each product are rounded to bfloat16, and so is their sum in float32. In bfloat16 the sum of 600 equal
    terms would stop at 256 of them, where half a unit of the last digit is one term.
    """
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr(logprobs, "CHUNK_TOKENS", chunk)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 12, generator=generator).bfloat16()
    weight = (torch.randn(24, 12, generator=generator) / 4).bfloat16()
    target = torch.zeros(600, dtype=torch.long)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    _LinearLogProb.apply(*inputs, None, target, 1.0, EVERYTHING).sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in (x, weight)]
    (exact[0] @ exact[1].T).log_softmax(1).gather(1, target[:, None]).sum().backward()
    for computed, expected in zip(inputs, exact, strict=True):
        assert computed.grad is not None and expected.grad is not None and computed.grad.dtype == torch.bfloat16
        assert (computed.grad - expected.grad).abs().max() < 2**-7 * expected.grad.abs().max()


def test_frozen_head_still_passes_gradient_to_the_body() -> None:
    x, weight, _, target = head_inputs(torch.float32)
    found = _LinearLogProb.apply(x, weight.detach(), None, target, 1.0, EVERYTHING)
    expected = (x @ weight.detach().T).log_softmax(1).gather(1, target[:, None])[:, 0]
    assert (torch.autograd.grad(found.sum(), x)[0] - torch.autograd.grad(expected.sum(), x)[0]).abs().max() < 1e-5


def test_bf16_autocast() -> None:
    model = build("llama")
    batch = TokenBatch.from_rows(rows())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = token_logps(model, batch).logps_N
    assert found.dtype == torch.float32
    found.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    expected, _ = reference(model, 1.0)
    assert (found - expected).abs().max() < 0.1


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_halved_reference_computes_what_autocast_does(family: str) -> None:
    """Its blocks are kept in bfloat16, the parameters of their norms too; those are rounded before they are used."""
    model, batch = build(family).requires_grad_(False), TokenBatch.from_rows(rows())
    with torch.autocast("cpu", torch.bfloat16):
        expected = token_logps(model, batch).logps_N
    cast_blocks(model, torch.bfloat16)
    assert next(model.base_model.parameters()).dtype == torch.float32  # type: ignore[union-attr, operator]
    torch.testing.assert_close(token_logps(model, batch).logps_N, expected, atol=1e-6, rtol=0)
    with unsharded(model) as full:
        assert {p.dtype for p in full.parameters()} == {torch.bfloat16}
        # a rounded frequency of a rotary embedding is .1 nats at position 500
        assert all(torch.equal(a, b) for a, b in zip(full.buffers(), model.buffers(), strict=True))
        torch.testing.assert_close(token_logps(full, batch).logps_N, expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("family", CONFIGS)
def test_exact_kl(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    policy, other = build(family), build(family, seed=1)
    batch = TokenBatch.from_rows(rows())
    assert exact_kl(policy, policy, batch).tolist() == [0.0] * 4
    assert exact_kl(policy, copy.deepcopy(policy), batch).tolist() == [0.0] * 4
    with torch.no_grad():
        (_, p), (_, q) = reference(policy, 0.9), reference(other, 0.9)
    expected = torch.stack([(a.exp() * (a - b)).sum() for a, b in zip(p, q, strict=True)])
    assert (exact_kl(policy, other, batch, temperature=0.9) - expected).abs().max() < 1e-4
    monkeypatch.setattr(logprobs, "CHUNK_ENTRIES", 3 * VOCABULARY)
    assert (exact_kl(policy, other, batch, temperature=0.9) - expected).abs().max() < 1e-4


def test_reward_is_read_at_the_last_real_token() -> None:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(LlamaConfig(**SMALL, num_labels=1)).eval()
    with torch.no_grad():
        nn.init.normal_(model.score.weight)
        batch = TokenBatch.from_rows(rows())
        together = reward_scores(model, batch)
        alone = torch.cat([reward_scores(model, TokenBatch.from_rows([row])) for row in rows()])
        wide = torch.nn.functional.pad(batch.tokens_BT, (0, 6), value=13)
        padded = reward_scores(model, dataclasses.replace(batch, tokens_BT=wide, prompt_of=None))
    assert (together - alone).abs().max() < 1e-5
    assert (together - padded).abs().max() < 1e-5
    assert together.unique().numel() == 4
