"""Mixtures of experts, whose weights are 3-D tensors (expert, outputs, inputs) instead of linear layers.

Three things follow. Adapters apply to the attention only. Four-bit weights are rejected (see `weights.py`). Autocast
knows linear layers but not the grouped product of experts, so it is applied here. The router's auxiliary loss is not
used: transformers adds it to its own loss, which rlhf_lab does not compute.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn


def experts(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold the weights of experts."""
    modules = []
    for module in model.modules():
        if not hasattr(module, "num_experts"):
            continue
        if any(weight.ndim == 3 for weight in module.parameters(recurse=False)):
            modules.append(module)
    return modules


def compute_under_autocast(model: nn.Module) -> nn.Module:
    """Let experts compute in the dtype of autocast, as linear layers do. Changes the model in place."""
    for module in experts(model):
        module.forward = partial(_forward, module)
    return model


def _forward(module: nn.Module, hidden: torch.Tensor, *routing: torch.Tensor) -> Any:
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device)
    weights = dict(module.named_parameters(recurse=False))
    if not torch.is_autocast_enabled(device) or all(weight.dtype == dtype for weight in weights.values()):
        # nothing to round: without autocast, or with weights that already have its dtype
        return type(module).forward(module, hidden, *routing)
    rounded = {name: weight.to(dtype) for name, weight in weights.items()}
    return torch.func.functional_call(module, rounded, (hidden, *routing))
