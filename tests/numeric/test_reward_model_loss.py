"""Bradley-Terry by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf_lab.losses.reward_model import bradley_terry


def loss(chosen: float, rejected: float, **kwargs: float) -> float:
    column = torch.tensor([[chosen], [rejected]], dtype=torch.float64)
    return bradley_terry(column[0], column[1], **kwargs).item()


def test_worked_examples():
    """−log σ(1) = 0.313262; equal scores log 2; −log σ(−2) = 2.126928."""
    assert loss(1.5, 0.5) == pytest.approx(0.313262, abs=1e-6)
    assert loss(3.0, 3.0) == pytest.approx(math.log(2))
    assert loss(-1.0, 1.0) == pytest.approx(2.126928, abs=1e-6)


def test_margin():
    """The chosen reply must win by the margin: scores 1.5 − 0.5 with margin 1 cost as much as a tie."""
    assert loss(1.5, 0.5, margin=1.0) == pytest.approx(math.log(2))
    assert loss(1.5, 0.5, margin=3.0) == pytest.approx(2.126928, abs=1e-6)


def test_centering():
    """0.01·(1.5 + 0.5)² = 0.04 on top of 0.313262."""
    assert loss(1.5, 0.5, centering=0.01) == pytest.approx(0.353262, abs=1e-6)


def test_only_centering_sees_a_shift():
    assert loss(11.5, 10.5) == pytest.approx(loss(1.5, 0.5))
    assert loss(11.5, 10.5, centering=0.01) > loss(1.5, 0.5, centering=0.01)


def test_gradient_by_hand():
    """∂/∂r_c = −σ(−(r_c − r_r)) + 2c(r_c + r_r) = −0.268941 + 0.02·2 = −0.228941."""
    chosen, rejected = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (1.5, 0.5))
    bradley_terry(chosen, rejected, centering=0.01).sum().backward()
    assert chosen.grad.item() == pytest.approx(-0.228941, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.308941, abs=1e-6)


def test_one_loss_per_pair():
    assert bradley_terry(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0])).shape == (2,)
