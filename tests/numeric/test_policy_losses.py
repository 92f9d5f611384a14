"""Policy, value, KL and advantage functions: the arithmetic on the page, float64 references, properties, TRL."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from rlhf_lab.losses.advantage import GROUP_ADVANTAGES, GroupScores, canon, dr_grpo, gae, grpo, whiten
from rlhf_lab.losses.policy import (
    KL_ESTIMATORS,
    POLICY_LOSSES,
    ClipRange,
    PolicyTokens,
    adaptive_beta,
    cispo,
    explained_variance,
    gspo,
    k1,
    k2,
    k3,
    loss_units,
    ppo_clip,
    token_weights,
    value_loss,
)

CLIP = ClipRange(0.2, 0.2)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens(logp, old, advantage, row=None, rows=1) -> PolicyTokens:
    row = torch.zeros(len(old), dtype=torch.long) if row is None else torch.tensor(row)
    return PolicyTokens(logp, old, advantage, row, rows)


# --- advantages -------------------------------------------------------------------------------------------------------

SCORES = tensor(1.0, 2.0, 3.0, 6.0)[None]  # mean 3, deviations −2 −1 0 3, sample variance 14/3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [x / math.sqrt(14 / 3) for x in (-2, -1, 0, 3)]),
        ("dr_grpo", [-2, -1, 0, 3]),
        ("rloo", [-8 / 3, -4 / 3, 0, 4]),  # 1 − mean(2, 3, 6), 2 − mean(1, 3, 6), 3 − 3, 6 − 2
        ("remax", [-1.5, -0.5, 0.5, 3.5]),
    ],
)
def test_advantages_by_hand(name, expected):
    found = GROUP_ADVANTAGES[name](GroupScores(SCORES, greedy_B=tensor(2.5)))
    assert found[0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("size", [3, 6, 8, 16])
def test_equal_scores_have_no_advantage(size):
    """In float32 the mean of 16 times 4.7 differs from 4.7 by 5e-7, half of the ε of the z-score."""
    scores = torch.linspace(-5, 5, 41)[:, None].repeat(1, size)
    scores[0, 0] = torch.nan
    assert (grpo(GroupScores(scores)) == 0).all()


def test_canon_by_hand():
    """Lengths 10 40 20 30: the lower half is responses 0 and 2 (mean 2), the upper 1 and 3 (mean 4).

    μ = 1 compares with the other half: 1 − 4, 2 − 2, 3 − 4, 6 − 2. μ = 0 with the own: 1 − 2, 2 − 4, 3 − 2, 6 − 4.
    """
    lengths = tensor(10, 40, 20, 30)[None]
    assert canon(GroupScores(SCORES, lengths_BG=lengths, inter_weight=1.0)).tolist() == [[-3, 0, -1, 4]]
    assert canon(GroupScores(SCORES, lengths_BG=lengths, inter_weight=0.0)).tolist() == [[-1, -2, 1, 2]]


def test_canon_at_a_half_is_dr_grpo():
    scores, lengths = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    ours = canon(GroupScores(scores, lengths_BG=lengths, inter_weight=0.5))
    assert torch.allclose(ours, dr_grpo(GroupScores(scores)))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "canon"])
def test_an_unscored_reply_counts_in_no_mean(name):
    """1, NaN, 5: as the group 1, 5 with an additional advantage of 0."""
    size = tensor(1, 2, 3)[None]
    with_gap = GROUP_ADVANTAGES[name](GroupScores(tensor(1, math.nan, 5)[None], lengths_BG=size))
    without = GROUP_ADVANTAGES[name](GroupScores(tensor(1, 5)[None], lengths_BG=size[:, [0, 2]]))
    assert with_gap[0, 1] == 0
    assert torch.allclose(with_gap[:, [0, 2]], without)


def test_canon_when_the_shortest_reply_is_unscored():
    """Lengths 5 (unscored), 10, 40, 20, 30: the halves are of the scored responses, {10, 20} with 1 and 3 (mean 2)
    and {30, 40} with 6 and 2 (mean 4). μ = 1: 1 − 4, 2 − 2, 3 − 4, 6 − 2; μ = 0: 1 − 2, 2 − 4, 3 − 2, 6 − 4.
    """
    scores, lengths = tensor(math.nan, 1, 2, 3, 6)[None], tensor(5, 10, 40, 20, 30)[None]
    assert canon(GroupScores(scores, lengths_BG=lengths, inter_weight=1.0)).tolist() == [[0, -3, 0, -1, 4]]
    assert canon(GroupScores(scores, lengths_BG=lengths, inter_weight=0.0)).tolist() == [[0, -1, -2, 1, 2]]


def gae_loop(rewards, values, gamma, lam):
    """A_t = Σ_k (γλ)^k δ_{t+k}, each term on its own, float64."""
    values = [*values, 0.0]
    delta = [r + gamma * b - a for r, (a, b) in zip(rewards, pairwise(values), strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_gae_against_a_float64_loop(gamma, lam):
    rng = np.random.default_rng(0)
    lengths = [5, 1, 3]
    rewards, values = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    ours = gae(torch.tensor(rewards), torch.tensor(values), torch.tensor(lengths), gamma=gamma, lam=lam)
    for row, length in enumerate(lengths):
        expected = gae_loop(rewards[row, :length], values[row, :length], gamma, lam)
        assert torch.allclose(ours[row, :length], torch.tensor(expected), atol=1e-12)
        assert (ours[row, length:] == 0).all()


def test_whitening():
    values = whiten(torch.randn(100, dtype=torch.float64) * 3 + 7)
    assert abs(float(values.mean())) < 1e-9 and float(values.std(unbiased=False)) == pytest.approx(1, abs=1e-6)


# --- policy losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_at_ratio_one_the_gradient_is_reinforce(name):
    """∂/∂θ of −ρA at ρ = 1 is −A·∂ log π. For gspo: of the mean over each response's tokens."""
    logp = torch.randn(6, dtype=torch.float64, requires_grad=True)
    row, length = torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([2, 2, 4, 4, 4, 4])
    advantage = tensor(1.5, 1.5, -2, -2, -2, -2)
    batch = PolicyTokens(logp, logp.detach(), advantage, row, 2)
    weight = token_weights("sequence_mean", length, 10)
    (POLICY_LOSSES[name](batch, CLIP).per_token * weight).sum().backward()
    assert torch.allclose(logp.grad, -advantage / length)


def test_ppo_clip_by_hand():
    """ρ = 1.5 with A = 1 is clipped to 1.2 and has no gradient; with A = −1 it is not; ρ = .5 is the reverse."""
    ratio, advantage = tensor(1.5, 1.5, 0.5, 0.5), tensor(1, -1, 1, -1)
    logp = ratio.log().requires_grad_()
    found = ppo_clip(tokens(logp, tensor(0, 0, 0, 0), advantage), CLIP)
    assert found.per_token.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8])
    assert found.clipped.tolist() == [True, False, False, True]
    found.per_token.sum().backward()
    assert logp.grad.tolist() == pytest.approx([0, 1.5, -0.5, 0])


@pytest.mark.parametrize(
    ("log_ratios", "advantages", "clip", "losses"),
    [
        ([math.log(1.25), math.log(0.75)], [1, -1], ClipRange(0.2, 0.28), [-1.25, 0.8]),  # more room upwards
        ([math.log(10)] * 2, [-1, 1], CLIP, [10, -1.2]),
        ([math.log(10)] * 2, [-1, 1], CLIP._replace(dual=3.0), [3, -1.2]),  # only a negative advantage is bounded
        ([100], [-1], CLIP._replace(log_ratio=2.0), [math.exp(2)]),
        ([100], [-1], CLIP, [485165195.41]),  # e²⁰, the bound where none is set
    ],
)
def test_bounds_of_the_ratio_by_hand(log_ratios, advantages, clip, losses):
    batch = tokens(tensor(*log_ratios), torch.zeros(len(log_ratios)), tensor(*advantages))
    assert ppo_clip(batch, clip).per_token.tolist() == pytest.approx(losses)


def test_gspo_uses_one_ratio_per_reply():
    """Log ratios .1 and .3 of one response: s = e^.2 for both tokens."""
    batch = tokens(tensor(0.1, 0.3), tensor(0, 0), tensor(1, 1))
    assert gspo(batch, ClipRange(1, 1)).ratio.tolist() == pytest.approx([math.exp(0.2)] * 2)
    assert gspo(batch, ClipRange(0.1, 0.1)).per_token.tolist() == pytest.approx([-1.1, -1.1])


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    logp = tensor(math.log(2.0), math.log(0.5)).requires_grad_()
    found = cispo(tokens(logp, tensor(0, 0), tensor(1, 1)), ClipRange(1.0, 0.28))
    found.per_token.sum().backward()
    assert logp.grad.tolist() == pytest.approx([-1.28, -0.5])


def test_aggregations_by_hand():
    """Responses of 1 and 3 tokens, losses 4 and 1 1 1: token mean 7/4, response mean (4 + 1)/2, constant 7/(2·10)."""
    loss, length = tensor(4, 1, 1, 1), torch.tensor([1, 3, 3, 3])
    expected = {"token_mean": 7 / 4, "sequence_mean": 2.5, "constant": 7 / 20}
    for name, value in expected.items():
        total = (loss * token_weights(name, length, 10)).sum() / loss_units(name, responses=2, tokens=4)
        assert total.item() == pytest.approx(value)


# --- value and KL -----------------------------------------------------------------------------------------------------


def test_value_loss_clips_the_worse_way():
    """V = 1, V_old = 0, R = 1, clip .2: free ½·0, bounded ½·(.2 − 1)² = .32, and the larger one counts."""
    one, zero = tensor(1.0), tensor(0.0)
    assert value_loss(one, zero, one, clip=0.2).item() == pytest.approx(0.32)
    assert value_loss(one, zero, one, clip=0.0).item() == 0


def test_explained_variance():
    returns = tensor(1, 2, 3, 4)
    assert explained_variance(returns, returns).item() == 1
    assert explained_variance(torch.full_like(returns, 2.5), returns).item() == pytest.approx(0)
    assert explained_variance(-returns, returns).item() == pytest.approx(-3)
    # a constant error leaves no variance: it is not the mean squared error
    assert explained_variance(torch.full_like(returns, 7.0), returns).item() == pytest.approx(0)
    assert explained_variance(returns + 5, returns).item() == pytest.approx(1)
    assert explained_variance(tensor(1, 2, 3, 8), returns).item() == pytest.approx(1 - 3 / 1.25)  # errors 0 0 0 4


def test_kl_estimators_by_hand():
    """log π = −1, log π_ref = −1.5: k1 = .5, k2 = .125, k3 = e^−.5 − 1 + .5."""
    logp, ref = tensor(-1.0), tensor(-1.5)
    found = [estimate(logp, ref).item() for estimate in (k1, k2, k3)]
    assert found == pytest.approx([0.5, 0.125, math.exp(-0.5) - 0.5])


def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    """Over all outcomes, Σ π·k = KL(π ‖ π_ref)."""
    p, q = torch.randn(20, dtype=torch.float64).softmax(0), torch.randn(20, dtype=torch.float64).softmax(0)
    kl = (p * (p.log() - q.log())).sum()
    for name in ("k1", "k3"):
        assert (p * KL_ESTIMATORS[name](p.log(), q.log())).sum() == pytest.approx(float(kl))
    assert (k3(p.log(), q.log()) >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_far_from_the_reference_by_hand(dtype):
    """log π_ref/π = 9: e⁹ − 1 − 9 with gradient 1 − e⁹ in log π. From 10 on it stays e¹⁰ − 1 − 10, without a gradient.

    −30: e⁻³⁰ − 1 + 30, gradient 1 − e⁻³⁰. 10⁻⁴: half its square, which e^x − 1 − x in float32 would lose.
    """
    log_r = torch.tensor([9.0, 30.0, 200.0, -30.0, 1e-4], dtype=dtype)
    logp = (-log_r).requires_grad_()
    found = k3(logp, torch.zeros(5, dtype=dtype))
    ceiling = 22026.465794806718 - 11
    expected = [8103.083927575384 - 10, ceiling, ceiling, 29.0, 5e-9]
    assert found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-3 * 5e-9 if dtype == torch.float64 else 3e-9)
    found.sum().backward()
    assert logp.grad.tolist() == pytest.approx([1 - 8103.083927575384, 0, 0, 1.0, -1e-4], rel=1e-3)


def test_the_gradient_of_k2_is_that_of_kl():
    """E_π[∇ k2] = Σ π (log π − log q)·∇ log π = ∇ KL."""
    z = torch.randn(9, dtype=torch.float64, requires_grad=True)
    q = torch.randn(9, dtype=torch.float64).log_softmax(0)
    logp = z.log_softmax(0)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - q)).sum(), z, retain_graph=True)
    (ours,) = torch.autograd.grad((logp.exp().detach() * k2(logp, q)).sum(), z)
    assert torch.allclose(ours, exact)


def test_adaptive_beta_by_hand():
    """KL at twice the target: the error 1 is cut to .2; 64 of 640 samples: β·(1 + .02). At half of it: β·(1 − .02)."""
    assert adaptive_beta(0.1, 12, target=6, horizon=640, samples=64) == pytest.approx(0.102)
    assert adaptive_beta(0.1, 3, target=6, horizon=640, samples=64) == pytest.approx(0.098)
    assert adaptive_beta(0.1, 6.6, target=6, horizon=640, samples=64) == pytest.approx(0.101)
