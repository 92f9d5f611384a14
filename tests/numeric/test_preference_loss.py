"""DPO by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf_lab.losses.preference import PREFERENCE_LOSSES, PairLogps, dpo, idealised_ranking


def pairs(*values: tuple[float, float]) -> PairLogps:
    columns = torch.tensor(values, dtype=torch.float64).T
    return PairLogps(columns[0], columns[1])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_policy_equal_to_reference_is_log_2():
    logps = pairs((-3.0, -7.0), (-100.0, -2.0))
    loss = dpo(logps, logps, beta=0.7)
    assert loss.per_pair_B.tolist() == pytest.approx([math.log(2)] * 2, abs=1e-15)
    assert loss.margin_B.tolist() == [0.0, 0.0]


def test_worked_example():
    """Policy (−1, −4), reference (−2, −3), β = 0.5: margin 0.5·((−1+2) − (−4+3)) = 1, loss −log σ(1) = 0.313262."""
    loss = dpo(pairs((-1, -4)), pairs((-2, -3)), beta=0.5)
    assert loss.margin_B.item() == pytest.approx(1.0)
    assert loss.per_pair_B.item() == pytest.approx(0.313262, abs=1e-6)


def test_gradient_by_hand():
    """∂/∂ log π(chosen) = −β·σ(−m), ∂/∂ log π(rejected) = +β·σ(−m); with β = 0.5, m = 1: ∓0.134471."""
    policy = PairLogps(torch.tensor([-1.0], requires_grad=True), torch.tensor([-4.0], requires_grad=True))
    dpo(policy, pairs((-2, -3)), beta=0.5).per_pair_B.sum().backward()
    assert policy.chosen.grad.item() == pytest.approx(-0.134471, abs=1e-6)
    assert policy.rejected.grad.item() == pytest.approx(0.134471, abs=1e-6)


def test_label_smoothing():
    """ε = 0.1, m = 1: 0.9·0.313262 + 0.1·(−log σ(−1) = 1.313262) = 0.413262."""
    loss = dpo(pairs((-1, -4)), pairs((-2, -3)), beta=0.5, label_smoothing=0.1)
    assert loss.per_pair_B.item() == pytest.approx(0.413262, abs=1e-6)


def test_smoothed_loss_is_least_where_the_model_is_as_sure_as_the_labels():
    """d/dm = σ(m) − (1 − ε) = 0 at m = logit(1 − ε)."""
    best = math.log(0.9 / 0.1)
    losses = [
        dpo(pairs((m, 0)), pairs((0, 0)), beta=1.0, label_smoothing=0.1).per_pair_B.item()
        for m in (best - 0.01, best, best + 0.01)
    ]
    assert losses[1] < min(losses[0], losses[2])


def test_the_margin_carries_no_gradient_and_large_margins_stay_finite():
    policy = PairLogps(torch.tensor([-1e4], requires_grad=True), torch.tensor([0.0]))
    loss = dpo(policy, pairs((0, 0)), beta=1.0)
    assert not loss.margin_B.requires_grad
    assert loss.per_pair_B.item() == pytest.approx(1e4)


def test_the_table_of_losses():
    assert PREFERENCE_LOSSES["sigmoid"] is dpo


@pytest.mark.parametrize(
    ("chosen", "rejected", "p", "beta", "right"),
    [
        (-1.0, -2.0, 0.6, 1.0, True),  # the reference is right already
        (-2.0, -1.0, 0.6, 1.0, False),  # −1 + logit(.6) = −1 + 0.405 < 0
        (-2.0, -1.0, 0.6, 0.4, True),  # −1 + 0.405/0.4 = +0.014
        (-2.0, -1.0, 0.6, 0.41, False),  # −1 + 0.405/0.41 = −0.011
        (-2.0, -1.0, 0.8, 1.0, True),  # −1 + 1.386
        (-1.0, -1.5, 0.3, 1.0, False),  # the annotator prefers the other reply: 0.5 − 0.847
        (-50.0, -1.0, 1.0, 1.0, False),  # a certain label is not an infinite one: logit is cut at 13.8
    ],
)
def test_idealised_ranking(chosen, rejected, p, beta, right):
    """log π_ref(chosen) − log π_ref(rejected) + logit(p)/β > 0."""
    found = idealised_ranking(pairs((chosen, rejected)), torch.tensor([p], dtype=torch.float64), beta=beta)
    assert found.tolist() == [right]


def test_idealised_ranking_is_that_of_the_closed_form_policy():
    """π*(y) ∝ π_ref(y)·exp(r(y)/β), computed over a set of four replies."""
    ref = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    reward, beta = torch.tensor([0.0, 0.4, 1.0, 1.5], dtype=torch.float64), 0.5
    optimal = (ref + reward / beta).log_softmax(0)
    for c in range(4):
        for r in range(4):
            if c != r:
                p = torch.tensor([sigmoid(float(reward[c] - reward[r]))], dtype=torch.float64)
                found = idealised_ranking(PairLogps(ref[c : c + 1], ref[r : r + 1]), p, beta=beta)
                assert found.item() == bool(optimal[c] > optimal[r])
