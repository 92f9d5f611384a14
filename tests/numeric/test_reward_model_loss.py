"""Bradley-Terry, ODIN and PPO-M by hand, sentences of confidence, and ODIN's length statistic in parts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from rlhf_lab.algorithms.reward_models.reward_members import confidence_rows, length_statistic
from rlhf_lab.losses.reward_model import (
    bradley_terry,
    correlation,
    head_overlap,
    length_split,
    spread_over_pairs,
    stated_confidence,
)


@pytest.mark.parametrize(
    ("chosen", "rejected", "settings", "loss"),
    [
        (1.5, 0.5, {}, 0.313262),  # −log σ(1)
        (3.0, 3.0, {}, math.log(2)),
        (-1.0, 1.0, {}, 2.126928),  # −log σ(−2)
        (1.5, 0.5, {"margin": 1.0}, math.log(2)),  # the chosen response must win by the margin
        (1.5, 0.5, {"margin": 3.0}, 2.126928),
        (1.5, 0.5, {"centering": 0.01}, 0.353262),  # 0.01·(1.5 + 0.5)² on top of 0.313262
    ],
)
def test_bradley_terry_by_hand(chosen, rejected, settings, loss):
    found = bradley_terry(column(chosen), column(rejected), **settings)
    assert found.item() == pytest.approx(loss, abs=1e-6)


def test_gradient_by_hand():
    """∂/∂r_c = −σ(−(r_c − r_r)) + 2c(r_c + r_r) = −0.268941 + 0.02·2 = −0.228941."""
    chosen, rejected = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (1.5, 0.5))
    bradley_terry(chosen, rejected, centering=0.01).sum().backward()
    assert chosen.grad.item() == pytest.approx(-0.228941, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.308941, abs=1e-6)


def column(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_stated_confidence_by_hand():
    """Chosen 2 when sure, 1 when not: −log σ(1) = 0.313262. Rejected 0.5 when sure, −1.5 when not: −log σ(−2) =
    2.126928. Together 2.440190; reversed −log σ(−1) − log σ(2) = 1.313262 + 0.126928 = 1.440190."""
    right = stated_confidence(column(2), column(1), column(0.5), column(-1.5))
    assert right.item() == pytest.approx(2.440190, abs=1e-6)
    assert stated_confidence(column(1), column(2), column(-1.5), column(0.5)).item() == pytest.approx(
        1.440190, abs=1e-6
    )
    assert stated_confidence(*[column(3.0, -1.0)] * 4).tolist() == pytest.approx([2 * math.log(2)] * 2)


def test_correlation_by_hand():
    """x = 1 2 4 − mean 7/3 → −4/3 −1/3 5/3, y = 1 3 2 − 2 → −1 1 0: Σxy = 1, Σx² = 42/9, Σy² = 2 → 1/√(84/9) =
    0.327327."""
    assert correlation(column(1, 2, 4), column(1, 3, 2)).item() == pytest.approx(0.327327, abs=1e-6)
    assert correlation(column(1, 2, 3), column(-2, -4, -6)).item() == pytest.approx(-1)


def test_length_split_by_hand():
    """Quality against length: −0.327327, its size counts; length head against length: 1. So 0.327327 − 1."""
    found = length_split(column(-1, -2, -4), column(5, 7, 6), torch.tensor([1, 3, 2]))
    assert found.item() == pytest.approx(0.327327 - 1, abs=1e-6)
    worst = length_split(column(5, 7, 6), column(-5, -7, -6), torch.tensor([1, 3, 2]))
    assert worst.item() == pytest.approx(2)


def test_equal_scores_have_no_correlation_and_a_finite_gradient():
    """ρ = Σxy/√(0 + 10⁻¹²): tokens are −1, 1, 0 about their mean, so that −ρ of the length head has 10⁶·(1, −1, 0).

    |ρ| of the quality head is at its minimum: no gradient.
    """
    quality, length = column(0, 0, 0, grad=True), column(1, 1, 1, grad=True)
    value = length_split(quality, length, torch.tensor([1, 3, 2]))
    value.backward()
    assert value.item() == 0
    assert quality.grad.tolist() == [0, 0, 0]
    assert length.grad.tolist() == pytest.approx([1e6, -1e6, 0])


def test_head_overlap_by_hand():
    """(3, 4)·(4, 3) = 24 over 5·5: 0.96, whatever the sign and the size; 0 at a right angle."""
    assert head_overlap(column(3, 4), column(4, 3)).item() == pytest.approx(0.96)
    assert head_overlap(column(3, 4), column(-40, -30)).item() == pytest.approx(0.96)
    assert head_overlap(column(3, 4), column(-4, 3)).item() == pytest.approx(0)


def test_a_statistic_of_the_step_spread_over_pairs():
    """Four pairs in passes of 1 and 3: value and gradient are those of the statistic of all eight responses at once."""
    scores = torch.randn(2, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tokens = torch.tensor([[3, 9, 4, 7], [5, 2, 8, 6]])

    def statistic(x: torch.Tensor) -> torch.Tensor:
        return length_split(*x.flatten(0, 1).unbind(-1), tokens.flatten())

    value = statistic(scores)
    (expected,) = torch.autograd.grad(value, scores)
    parts = zip(scores.split([1, 3], dim=1), (expected * 4).split([1, 3], dim=1), strict=True)
    terms = torch.cat([spread_over_pairs(value, part, gradient) for part, gradient in parts])
    assert terms.mean().item() == pytest.approx(value.item())
    (found,) = torch.autograd.grad(terms.mean(), scores)
    assert torch.allclose(found, expected, atol=1e-12) and expected.abs().max() > 0.01


EOS, SURE, UNSURE = 9, [51, 52], [61]
ENCODER = SimpleNamespace(chat=False, eos_id=EOS, response=lambda text: [*(SURE if text == "sure" else UNSURE), EOS])


def test_a_sentence_of_confidence_stands_before_the_end():
    chosen, rejected = confidence_rows(ENCODER, (([1], [2, 3, EOS]), ([1], [4, EOS])), "sure", "unsure", 20)
    assert chosen == (([1], [2, 3, *SURE, EOS]), ([1], [2, 3, *UNSURE, EOS]))
    assert rejected == (([1], [4, *SURE, EOS]), ([1], [4, *UNSURE, EOS]))


def test_a_long_reply_loses_its_end_and_keeps_the_sentence():
    (sure, _), _ = confidence_rows(ENCODER, (([1, 1], [2, 3, 4, 5]), ([1], [4])), "sure", "unsure", 7)
    assert sure == ([1, 1], [2, 3, *SURE, EOS])


def test_the_length_statistic_of_a_step():
    """Quality (first output) is uncorrelated with length, the length head (second) is length: the best value, −1."""
    tokens_2B = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    quality_2B = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    scores_2BA = torch.stack([quality_2B, 5 * tokens_2B], dim=-1)
    assert length_statistic(scores_2BA, tokens_2B).item() == pytest.approx(-1.0, abs=1e-6)
    swapped = length_statistic(scores_2BA.flip(-1), tokens_2B).item()
    assert swapped == pytest.approx(1.0, abs=1e-6)
    assert length_statistic(scores_2BA[:, :1], tokens_2B[:, :1]).item() == 0.0
