"""Members of an ensemble averaged into one model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rlhf_lab.models.lora import merged


def same_shape(models: Sequence[nn.Module]) -> bool:
    """Return True if all models have the same class, and tensors of the same names and shapes."""
    shapes = [(type(model), {name: tensor.shape for name, tensor in model.state_dict().items()}) for model in models]
    return all(shape == shapes[0] for shape in shapes)


def averaged(models: Sequence[nn.Module]) -> nn.Module:
    """Return a model whose every weight is the mean of the members' weights (WARM, arXiv:2401.12187).

    The members must satisfy `same_shape`. The model scores as well as the mean of the members' scores only if the
    members lie in one loss basin: they started from the same weights, including the head, and moved little from them.
    """
    unwrapped_models = [merged(model) for model in models]
    states = [model.state_dict() for model in unwrapped_models]
    # float32, because a mean in bfloat16 would lose digits
    mean_state = {
        name: torch.stack([state[name].float() for state in states]).mean(0).to(value.dtype)
        for name, value in states[0].items()
    }
    mean_model: Any = copy.deepcopy(unwrapped_models[0])
    mean_model.load_state_dict(mean_state)
    return mean_model.eval().requires_grad_(False)
