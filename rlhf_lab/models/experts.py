"""Mixtures of experts, whose weights are tensors of three dimensions (expert, outputs, inputs) and no linear layers.

What follows from that: adapters lie on the attention alone, four bits are refused (see `weights.py`), and autocast,
which knows linear layers and not the grouped product that experts are computed by, has to be applied to them here. The
router's auxiliary loss is left out: transformers adds it to a loss of its own, which the lab does not ask for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn


def experts(model: nn.Module) -> list[nn.Module]:
    """The modules that hold the weights of experts."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "num_experts") and any(weight.ndim == 3 for weight in module.parameters(recurse=False))
    ]


def compute_under_autocast(model: nn.Module) -> nn.Module:
    """Let experts compute in the dtype of autocast, as linear layers do, in place."""
    for module in experts(model):
        module.forward = partial(_forward, module)
    return model


def _forward(module: nn.Module, hidden: torch.Tensor, *routing: torch.Tensor) -> Any:
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device)
    weights = dict(module.named_parameters(recurse=False))
    if not torch.is_autocast_enabled(device) or all(weight.dtype == dtype for weight in weights.values()):
        return type(module).forward(module, hidden, *routing)
    rounded = {name: weight.to(dtype) for name, weight in weights.items()}
    return torch.func.functional_call(module, rounded, (hidden, *routing))
