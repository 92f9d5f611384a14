"""Preference losses by hand. The worked pair: policy (−1, −4), reference (−2, −3), log-ratio gap 1 + 1 = 2."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rlhf_lab.algorithms.preference.settings import DPO, IterativeDPO
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.losses.preference import (
    PREFERENCE_LOSSES,
    PairInputs,
    PairLogps,
    PairTokens,
    consistency_rate,
    dpo,
    idealised_ranking,
    kendall_tau,
    kto,
    kto_unpaired,
    orpo,
    robust,
)
from rlhf_lab.models import pair_rows
from rlhf_lab.models.pair_rows import mismatched_rows

POLICY, REF = (-1.0, -4.0), (-2.0, -3.0)


def pairs(*values: tuple[float, float]) -> PairLogps:
    columns = torch.tensor(values, dtype=torch.float64).T
    return PairLogps(columns[0], columns[1])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def given(policy=POLICY, ref=REF, previous=REF, z_ref: float = 0.0) -> PairInputs:
    """The worked pair with responses of 2 and 4 tokens."""
    tokens = PairTokens(torch.tensor([2.0], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64))
    return PairInputs(pairs(policy), tokens, pairs(ref), pairs(previous), torch.tensor(z_ref, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "settings", "inputs", "loss", "margin"),
    [
        # m = 0.5·((−1 + 2) − (−4 + 3)) = 1, −log σ(1) = 0.313262; with ε = 0.1: 0.9·0.313262 + 0.1·1.313262
        ("sigmoid", {"beta": 0.5}, {}, 0.313262, 1.0),
        ("sigmoid", {"beta": 0.5, "label_smoothing": 0.1}, {}, 0.413262, 1.0),
        # (0.9·0.313262 − 0.1·1.313262)/(1 − 0.2)
        ("robust", {"beta": 0.5, "label_smoothing": 0.1}, {}, 0.188262, 1.0),
        # per token: policy (−0.5, −1), reference (−1, −0.75), h = 0.5 + 0.25; (0.75 − 1/2)²
        ("ipo", {"beta": 1.0}, {}, 0.0625, 0.75),
        # max(0, 1 − β·2)
        ("hinge", {"beta": 0.25}, {}, 0.5, 0.5),
        ("hinge", {"beta": 1.0}, {}, 0.0, 2.0),
        # rewards 0.5 and −0.5: (1 − σ(0.5)) + σ(−0.5) = 2·0.377541, and σ(0.5) + 1 − σ(1) = 0.622459 + 0.268941
        ("apo_zero", {"beta": 0.5}, {}, 0.755081, 1.0),
        ("apo_down", {"beta": 0.5}, {}, 0.891401, 1.0),
        # log-ratios (1, −1), z = 0.4: mean of 1 − σ(0.3) = 0.425557 and 1.5·(1 − σ(0.7)) = 0.497718
        ("kto", {"beta": 0.5, "undesirable_weight": 1.5}, {"z_ref": 0.4}, 0.461638, 1.0),
        # per token (−0.5, −1): m = 2·0.5 = 1, γ = 2·0.5: −log σ(0)
        ("simpo", {"beta": 2.0, "gamma_beta_ratio": 0.5}, {}, math.log(2), 1.0),
        # m = 0.5·3, −log σ(1.5) = 0.201413; NLL per token 1/2, λ = 0.8
        ("cpo", {"beta": 0.5, "nll_weight": 0.8}, {}, 0.601413, 1.5),
        # P = (e^−½, e^−1), log odds 0.432752 and −0.541325, m = 0.974077; NLL per token 0.5 + 0.1·0.320300
        ("orpo", {"beta": 0.1}, {}, 0.532030, 0.974077),
        # gaps 2 and 0.5, η = 0.4: h = 0.25·2 + 0.75·0.5 = 0.875; (0.875 − 1/0.8)², margin 0.4·0.875
        ("inpo", {"beta": 0.1, "reference_share": 0.25}, {"previous": (-1.5, -4)}, 0.140625, 0.35),
    ],
)
def test_losses_by_hand(name, settings, inputs, loss, margin):
    found = PREFERENCE_LOSSES[name](given(**inputs), settings)
    assert (found.per_pair_B.item(), found.margin_B.item()) == pytest.approx((loss, margin), abs=1e-6)


def test_large_margins_stay_finite():
    assert dpo(pairs((-1e4, 0.0)), pairs((0, 0)), beta=1.0).per_pair_B.item() == pytest.approx(1e4)


@pytest.mark.parametrize("m", [-3.0, 0.2, 4.0])
def test_robust_is_unbiased_under_flipped_labels(m):
    """0.8·L(m) + 0.2·L(−m) = −log σ(m), the loss of the clean label."""
    straight, flipped = (
        robust(pairs((x, 0)), pairs((0, 0)), beta=1.0, label_smoothing=0.2).per_pair_B for x in (m, -m)
    )
    assert (0.8 * straight + 0.2 * flipped).item() == pytest.approx(-math.log(sigmoid(m)), abs=1e-12)


def test_kto_mismatches_within_the_step():
    """Prompt by prompt the response of the row before; the ring closes; none meets the prompt of its own pair."""
    step = [(([i], [10 + i]), ([i], [20 + i, 0])) for i in range(3)]
    rows = mismatched_rows(step, 3)
    assert rows == [([0], [22, 0]), ([1], [10]), ([2], [11]), ([0], [12]), ([1], [20, 0]), ([2], [21, 0])]
    assert mismatched_rows(step, 2)[0] == ([0], [22])  # cut at the end


def test_kto_measures_a_kl_that_is_never_negative(monkeypatch):
    """Two pairs are four mismatched rows: the mean of log π/π_ref over them, and 0 where noise makes it negative."""
    step = [(([i], [10 + i]), ([i], [20 + i])) for i in range(2)]
    monkeypatch.setattr(pair_rows, "sequence_logps", lambda logps, rows, device: torch.tensor(logps)[: len(rows)])
    likelier, unlikelier = [-1.0, -2.0, -3.0, -4.0], [-2.0, -2.0, -4.0, -6.0]  # gaps 1, 0, 1, 2
    assert pair_rows.mismatched_kl(likelier, unlikelier, step, 8, "cpu").item() == 1.0
    assert pair_rows.mismatched_kl(unlikelier, likelier, step, 8, "cpu").item() == 0.0
    assert pair_rows.mismatched_kl(likelier, unlikelier, step[:1], 8, "cpu").item() == 0.0  # no other prompt


@pytest.mark.parametrize("logp", [0.0, -1e-9, -1e-3, -0.693, -5.0, -200.0])
def test_orpo_at_both_ends_against_float64(logp):
    """P is cut at e^(−10⁻⁶): log odds are ≤ log 10⁶, and a response beyond that has the gradient of its NLL alone.

    With m the gap of log odds: ∂/∂log P of the chosen response is −1 − β·σ(−m)/(1 − P), of the other β·σ(−m)/(1 − P).
    """
    policy = PairLogps(torch.tensor([logp], requires_grad=True), torch.tensor([-1.0], requires_grad=True))
    loss = orpo(policy, beta=0.1).per_pair_B
    loss.sum().backward()
    cut = min(logp, -1e-6)
    complement = -math.expm1(cut)
    margin = cut - math.log(complement) - (-1 - math.log(1 - math.exp(-1)))
    doubt = 1 / (1 + math.exp(margin))
    assert loss.item() == pytest.approx(-logp + 0.1 * math.log1p(math.exp(-margin)), rel=1e-5)
    of_odds = 0.1 * doubt / complement if logp == cut else 0.0
    assert policy.chosen.grad.item() == pytest.approx(-1 - of_odds, rel=1e-4)
    assert policy.rejected.grad.item() == pytest.approx(0.1 * doubt / (1 - math.exp(-1)), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigmoid", math.log(2)),
        ("robust", math.log(2)),  # (0.9 − 0.1)·log 2/0.8
        ("ipo", 1 / (4 * 0.3**2)),
        ("hinge", 1.0),
        ("apo_zero", 1.0),
        ("apo_down", 1.0),
        ("kto", 0.5),
        ("inpo", 1 / (4 * 0.9**2)),  # η = 0.3/(1/3)
    ],
)
def test_an_unmoved_policy(name, value):
    """Policy = reference: margin 0 and the value every run starts from, here at β = 0.3 and default settings."""
    settings = (IterativeDPO if name == "inpo" else DPO)(beta=0.3, loss=name)
    found = PREFERENCE_LOSSES[name](given(REF), settings.coefficients())
    assert found.per_pair_B.item() == pytest.approx(value, abs=1e-12)
    assert found.margin_B.item() == 0.0


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_every_loss_wants_a_wider_gap(name):
    """At the start, the gradient raises log π(chosen) − log π(rejected), and the margin carries none."""
    settings = (IterativeDPO if name == "inpo" else DPO)(beta=0.3, loss=name)
    policy = PairLogps(*(torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in REF))
    inputs = replace(given(), policy=policy)
    found = PREFERENCE_LOSSES[name](inputs, settings.coefficients())
    assert not found.margin_B.requires_grad
    found.per_pair_B.sum().backward()
    assert policy.rejected.grad.item() > policy.chosen.grad.item()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing=0.1 is not read by loss=ipo; it belongs to"),
        ({"loss": "ipo", "label_smoothing": 0.0}, "label_smoothing=0.0 is not read by loss=ipo"),
        ({"gamma_beta_ratio": 0.5}, "gamma_beta_ratio=0.5 is not read by loss=sigmoid; it belongs to loss=simpo"),
        ({"loss": "orpo", "nll_weight": 2.0}, "nll_weight=2.0 is not read by loss=orpo; it belongs to loss=cpo"),
        ({"loss": "sigmoid", "desirable_weight": 1.0}, "it belongs to loss=kto"),
        ({"loss": "kto", "batch_size": 1}, "batch_size=1 is too small: loss=kto"),
        ({"loss": "inpo"}, "use algorithm=dpo_iterative"),
        ({"loss": "robust", "label_smoothing": 0.5}, "must be at least 0 and below 0.5"),
    ],
)
def test_a_setting_that_the_loss_does_not_read_is_an_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        DPO(**settings)


def test_settings_of_rounds():
    assert IterativeDPO(loss="inpo", beta=0.1).coefficients() == {"beta": 0.1, "reference_share": pytest.approx(1 / 3)}
    with pytest.raises(ConfigError, match=r"reference_share=0.5 is not read by loss=sigmoid; it belongs to loss=inpo"):
        IterativeDPO(reference_share=0.5)


@pytest.mark.parametrize("name", sorted(PREFERENCE_LOSSES))
def test_cream_mixes_the_pair_with_its_reverse(name):
    """C = 1 is the loss, C = 0 the loss of the reversed pair, C = 0.7 the weighted sum."""
    coefficients = (IterativeDPO if name == "inpo" else DPO)(beta=0.3, loss=name).coefficients()
    objective, inputs = PREFERENCE_LOSSES[name], given()

    def at(c: float) -> float:
        return objective(inputs, coefficients, torch.tensor([c], dtype=torch.float64)).per_pair_B.item()

    assert at(1.0) == objective(inputs, coefficients).per_pair_B.item()
    assert at(0.0) == objective(inputs.reversed(), coefficients).per_pair_B.item()
    assert at(0.7) == pytest.approx(0.7 * at(1.0) + 0.3 * at(0.0))


@pytest.mark.parametrize(
    ("name", "reversed_loss"),
    [
        # per token: policy −1 and −½, reference −1.5 and −½; h = (−½ + ½) − (−1 + 1.5) = −½; (h − 1/(2β))²
        ("ipo", (-0.5 - 1) ** 2),
        # m = ½·(−½ + 1) = ¼, γ = ½·½
        ("simpo", math.log(1 + math.exp(-(0.25 - 0.25)))),
        # NLL ½ of the response that is now chosen, which is the one of four tokens; m = ½·(−2 + 2) = 0
        ("cpo", math.log(2) + 0.5),
        # P = e^−½ and e^−1: odds e^−½/(1 − e^−½) = 1.541494 and e^−1/(1 − e^−1) = .581977; −log σ(log of their ratio)
        ("orpo", 0.5 + 0.5 * math.log(1 + 0.581977 / 1.541494)),
    ],
)
def test_cream_at_0_is_the_reversed_pair_with_its_own_lengths(name, reversed_loss):
    """Chosen: 2 tokens, log π = −2, log π_ref = −3. Rejected: 4 tokens, −2 and −2. β = ½.

    Reversed, the response of four tokens is chosen: its sum is still over 4, and that of the other one over 2.
    """
    inputs = given((-2.0, -2.0), (-3.0, -2.0))
    coefficients = {"simpo": {"gamma_beta_ratio": 0.5}, "cpo": {"nll_weight": 1.0}}.get(name, {})
    found = PREFERENCE_LOSSES[name](inputs, {"beta": 0.5, **coefficients}, torch.zeros(1, dtype=torch.float64))
    assert found.per_pair_B.item() == pytest.approx(reversed_loss, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3], [4, 5, 9], 1.0),
        ([1, 2, 3], [9, 5, 4], -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),  # 5 pairs agree, 1 does not
        ([1, 1, 2], [1, 1, 2], 1.0),  # tied in both
        ([1, 1, 2], [1, 2, 3], 2 / math.sqrt(2 * 3)),
        ([1, math.nan, 3, 4], [1, 2, 3, 4], 1.0),
        ([1, 1, 1], [1, 2, 3], math.nan),
    ],
)
def test_kendall_tau(first, second, tau):
    found = kendall_tau(torch.tensor([first]).double(), torch.tensor([second]).double()).item()
    assert found == pytest.approx(tau, nan_ok=True)


def test_consistency_rate():
    """τ = 1, −1 and none: mean of (1 + 1)/2 and (−1 + 1)/2 is 0.5; no ranking at all takes the labels as they are."""
    first, second = torch.tensor([[1.0, 2], [1, 2], [3, 3]]), torch.tensor([[5.0, 6], [6, 5], [1, 2]])
    assert consistency_rate(first, second) == 0.5
    assert consistency_rate(first[2:], second[2:]) == 1.0


@pytest.mark.parametrize(
    ("chosen", "rejected", "p", "beta", "right"),
    [
        (-1.0, -2.0, 0.6, 1.0, True),  # the reference is right already
        (-2.0, -1.0, 0.6, 1.0, False),  # −1 + logit(.6) = −1 + 0.405 < 0
        (-2.0, -1.0, 0.6, 0.4, True),  # −1 + 0.405/0.4 = +0.014
        (-2.0, -1.0, 0.6, 0.41, False),  # −1 + 0.405/0.41 = −0.011
        (-2.0, -1.0, 0.8, 1.0, True),  # −1 + 1.386
        (-1.0, -1.5, 0.3, 1.0, False),  # the annotator prefers the other response: 0.5 − 0.847
        (-50.0, -1.0, 1.0, 1.0, False),  # a certain label is not an infinite one: logit is cut at 13.8
    ],
)
def test_idealised_ranking(chosen, rejected, p, beta, right):
    """log π_ref(chosen) − log π_ref(rejected) + logit(p)/β > 0."""
    found = idealised_ranking(pairs((chosen, rejected)), torch.tensor([p], dtype=torch.float64), beta=beta)
    assert found.tolist() == [right]


def test_kto_of_single_examples_is_the_mean_over_the_pairs_of_both_kinds():
    policy, ref = torch.tensor([-3.0, -5.0, -2.0, -4.0]), torch.tensor([-4.0, -4.5, -2.5, -3.0])
    liked, z_ref = torch.tensor([True, True, False, False]), torch.tensor(0.2)
    weights = {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.5}
    single = kto_unpaired(policy, ref, liked, z_ref, **weights)
    pairs = kto(PairLogps(policy[:2], policy[2:]), PairLogps(ref[:2], ref[2:]), z_ref, **weights)
    assert torch.allclose(single.per_pair_B.mean(), pairs.per_pair_B.mean())
    # The first: log-ratio 1 − z_ref 0.2, liked: 1.5·σ(−0.5·0.8) = 1.5/(1 + e^0.4) = 0.602.
    assert torch.allclose(single.per_pair_B[0], torch.tensor(1.5 / (1 + math.exp(0.4)), dtype=torch.float32))
    # The third: log-ratio 0.5, disliked: 0.5·σ(−0.5·(0.2 − 0.5)) = 0.5/(1 + e^−0.15) = 0.269.
    assert torch.allclose(single.per_pair_B[2], torch.tensor(0.5 / (1 + math.exp(-0.15)), dtype=torch.float32))
    assert torch.allclose(single.margin_B, torch.tensor([0.5, -0.25, -0.25, 0.5]))
