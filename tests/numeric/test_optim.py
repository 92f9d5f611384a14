"""One step of the optimisers of `training/optim.py`, by hand: rates of parts, decay, clipping, schedules, state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf_lab.training.optim import Optimizers, TrainedPart, lr_scale
from rlhf_lab.training.settings import TrainingSettings


def layer(value: float, gradient: float) -> nn.Linear:
    """A matrix of one weight and a bias, both with this value and this gradient."""
    generated = nn.Linear(1, 1)
    for parameter in generated.parameters():
        nn.init.constant_(parameter, value)
        parameter.grad = torch.full_like(parameter, gradient)
    return generated


def test_the_first_step_of_adamw_by_hand():
    """m̂/(√v̂ + ε) = g/(|g| + ε) = 1, so a parameter moves by lr; a matrix also by lr·decay·w, a bias does not.

    At half of the peak rates .1 and .02: w = 2·(1 − .05·.2) − .05 = 1.93 and b = 2 − .05, and for the second part
    w = 2·(1 − .01·.2) + .01 = 2.006 and b = 2 + .01.
    """
    policy, critic = layer(2.0, 0.5), layer(2.0, -0.5)
    parts = {"policy": TrainedPart(policy, 0.1), "critic": TrainedPart(critic, 0.02)}
    optimizers = Optimizers(parts, TrainingSettings(optimizer="adamw", weight_decay=0.2))
    optimizers.step(0.5)
    assert [p.item() for p in policy.parameters()] == pytest.approx([1.93, 1.95])
    assert [p.item() for p in critic.parameters()] == pytest.approx([2.006, 2.01])
    assert all(p.grad is None for p in policy.parameters())


def test_the_second_step_has_the_averages_of_both():
    """β = (.9, .99), g = 1 then 3. m̂ = (.1·.9·1 + .1·3)/(1 − .81) = .39/.19; v̂ = (.01·.99 + .01·9)/(1 − .9801).

    The step is lr·m̂/√v̂ = lr·2.052632/√5.020101 = .916119·lr, after one of lr.
    """
    model = layer(0.0, 1.0)
    optimizers = Optimizers(
        {"model": TrainedPart(model, 0.1)}, TrainingSettings(optimizer="adamw", adam_betas=(0.9, 0.99))
    )
    optimizers.step(1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimizers.step(1.0)
    assert model.weight.item() == pytest.approx(-0.1 - 0.1 * 2.052632 / 5.020101**0.5, abs=1e-6)


def test_each_part_is_clipped_by_its_own_norm():
    """(3, 4) has norm 5: clipped to 1 it is (.6, .8). A part below the limit keeps its gradient, (.3, .3)."""
    policy, critic = layer(0.0, 3.0), layer(0.0, 0.3)
    policy.bias.grad.fill_(4.0)
    optimizers = Optimizers(
        {"policy": TrainedPart(policy, 0.1), "critic": TrainedPart(critic, 0.1)}, TrainingSettings()
    )
    norms = optimizers.clip()
    assert {name: norm.item() for name, norm in norms.items()} == pytest.approx({"policy": 5.0, "critic": 0.18**0.5})
    assert (policy.weight.grad.item(), policy.bias.grad.item()) == pytest.approx((0.6, 0.8), rel=1e-5)
    assert (critic.weight.grad.item(), critic.bias.grad.item()) == pytest.approx((0.3, 0.3))


def test_muon_takes_hidden_matrices_alone():
    """Embeddings, heads and biases stay with AdamW, and both follow the schedule from their own peak."""
    names = ("embed_tokens", "hidden", "lm_head", "score")
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers = Optimizers({"model": TrainedPart(model, 0.1, 0.02)}, TrainingSettings(optimizer="muon", muon_lr=0.02))
    (adamw, adamw_peak), (muon, muon_peak) = optimizers.optimizers
    assert (adamw_peak, muon_peak) == (0.1, 0.02)
    assert [id(p) for group in muon.param_groups for p in group["params"]] == [id(model["hidden"].weight)]
    assert sum(len(group["params"]) for group in adamw.param_groups) == 7
    optimizers.step(0.25)
    assert {group["lr"] for group in adamw.param_groups} == {0.025}
    assert {group["lr"] for group in muon.param_groups} == {0.005}


@pytest.mark.parametrize(
    ("step", "scale"),
    [(0, 1 / 3), (1, 2 / 3), (2, 1.0), (3, 1.0), (5, 0.1 + 0.9 * 0.75), (6, 0.1 + 0.9 * 0.5), (9, 0.1)],
)
def test_the_schedule_by_hand(step, scale):
    """A fraction of .25 of 9 steps is 2¼, rounded up to 3. Behind it ½·(1 + cos(π·(step − 3)/6)) from 1 to .1."""
    assert lr_scale(step, 9, warmup_fraction=0.25, final_fraction=0.1) == pytest.approx(scale)
