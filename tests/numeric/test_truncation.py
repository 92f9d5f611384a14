"""Top-k, top-p and allowed tokens: one rule for the sampler and for the log-probabilities that are trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_sampler import CONFIGS, EOS, flat, prompts, random_model

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import _LinearLogProb, token_logps
from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.drawing import draw
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

P = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


def kept(truncation: Truncation, target: int | None = None) -> list[float]:
    targets = None if target is None else torch.tensor([target])
    return truncation.apply_(P.log(), targets).softmax(1)[0].tolist()


def test_by_hand():
    """p = .5 .3 .15 .05. Of .7 the nucleus is .5 and .3, so .625 and .375; k = 3 leaves .5 .3 .15 over .95."""
    assert kept(Truncation(top_p=0.7)) == pytest.approx([0.625, 0.375, 0, 0])
    assert kept(Truncation(top_p=0.4)) == pytest.approx([1, 0, 0, 0]), "the likeliest token always stays"
    assert kept(Truncation(top_k=3)) == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0])
    assert kept(Truncation(allowed=(1, 3))) == pytest.approx([0, 0.3 / 0.35, 0, 0.05 / 0.35])
    # allowed, then k, then p: of tokens 1, 2 and 3 the two likeliest, whose nucleus of .5 is token 1
    assert kept(Truncation(allowed=(1, 2, 3), top_k=2, top_p=0.5)) == pytest.approx([0, 1, 0, 0])


def test_a_sampled_token_that_has_left_the_nucleus_stays():
    """Token 3 beside .5 and .3: .05 over .85."""
    assert kept(Truncation(top_p=0.7), target=3) == pytest.approx([0.5 / 0.85, 0.3 / 0.85, 0, 0.05 / 0.85])


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8, "temperature": 0.7}])
def test_the_sampler_and_the_trainer_agree(settings: dict[str, Any]):
    model = random_model(CONFIGS["llama"])
    sampler = LocalSampler(Local(max_new_tokens=20, max_prompt_tokens=64, **settings), [EOS], allowed=range(3, 250))
    rows, logps_N = flat(sampler.sample(model, prompts(), 4, seed=1))
    temperature = settings.get("temperature", 1.0)
    with torch.no_grad():
        batch = TokenBatch.from_rows(rows)
        trained = token_logps(model, batch, temperature=temperature, truncation=sampler.truncation)
        full = token_logps(model, batch, temperature=temperature)
    assert (logps_N - trained.logps_N).abs().max() < 1e-4, "the ratio starts at 1"
    assert (trained.logps_N - full.logps_N).min() > -1e-5 and (trained.logps_N - full.logps_N).max() > 0.1
    assert all(3 <= token < 250 for _, response in rows for token in response)


def test_draws_follow_the_truncated_distribution():
    noise = torch.linspace(0, 1 - 1e-6, 20_001)
    tokens, logps = draw(P.log().expand(len(noise), -1), noise, 1.0, Truncation(top_p=0.7))
    fractions = torch.bincount(tokens, minlength=4) / len(tokens)
    assert fractions.tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=1e-3)
    assert logps.exp().unique().tolist() == pytest.approx([0.375, 0.625])


@pytest.mark.parametrize("kept_entries", [10**9, 0])
def test_gradient_of_the_truncated_head(monkeypatch, kept_entries):
    """Against autograd through the same cut; other tokens get none."""
    monkeypatch.setattr("rlhf_lab.models.logprobs.KEPT_ENTRIES", kept_entries)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 6, generator=generator).requires_grad_() for n in (5, 9))
    target = torch.tensor([0, 3, 8, 2, 2])
    truncation = Truncation(top_k=4)
    found = torch.autograd.grad(_LinearLogProb.apply(x, weight, None, target, 1.25, truncation).sum(), [x, weight])
    z = (x @ weight.T) * 1.25
    cut = truncation.apply_(z.detach().clone(), target).isinf()
    expected_logps = z.masked_fill(cut, -torch.inf).log_softmax(1).gather(1, target[:, None])
    expected = torch.autograd.grad(expected_logps.sum(), [x, weight])
    for mine, reference in zip(found, expected, strict=True):
        assert torch.allclose(mine, reference, atol=1e-5)
