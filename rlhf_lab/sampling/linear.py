"""Projections for decoding: a copy of the weights, or the model's own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from rlhf_lab.models.lora import base_layer, effective_weight

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""Activation function by its name in Hugging Face."""
BFLOAT16_FROM = 2**15
"""On a CPU, number of weights from which a product in bfloat16 is faster than one in float32."""


@dataclass(frozen=True)
class LinearSource:
    """A linear layer of the model, as part of a projection.

    Attributes:
        layer: `nn.Linear`, GPT-2's `Conv1D`, or one of them with an adapter.
        scale: factor of its outputs; one number, or one per output.
        order: order of the outputs; None keeps it.
    """

    layer: nn.Module
    scale: float | Tensor = 1.0
    order: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """Weight (out, in) in float32, including the adapter's product."""
        weight = effective_weight(self.layer).detach()
        weight = weight.T if isinstance(base_layer(self.layer), Conv1D) else weight
        scale = self.scale[:, None] if isinstance(self.scale, Tensor) else self.scale
        return self._ordered(weight.float() * scale)

    @property
    def bias(self) -> Tensor | None:
        bias: Any = base_layer(self.layer).bias
        return None if bias is None else self._ordered(bias.detach().float() * self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the model's layer to x, under the autocast that its weights need."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = self.layer(x) * self.scale
        return y if self.order is None else y[..., self.order]

    def _ordered(self, rows: Tensor) -> Tensor:
        return rows if self.order is None else rows[self.order]


class InPlace:
    """The interface of `Linear`, computed by several layers of the model. It is slower, but copies no weight.

    It is used for models stored in less than float32, where a copy for sampling would be the largest tensor in memory.
    """

    def __init__(self, sources: Sequence[LinearSource]):
        self.sources = sources

    def __call__(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        """(rows, in) → (rows, out), bfloat16."""
        y = torch.cat([source(x) for source in self.sources], dim=-1)
        return activation(y) if activation else y

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x Wᵀ + b in float32."""
        return residual + self(x)


class Linear:
    """x ↦ x Wᵀ + b.

    On a CPU a small bfloat16 weight is multiplied in float32, which is faster and no less exact.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        if weight.device.type == "cpu" and weight.numel() < BFLOAT16_FROM:
            weight = weight.float()
            bias = None if bias is None else bias.float()
        self.weight = weight
        self.bias = bias
        self.dtype = weight.dtype

    def __call__(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        """(rows, in) → (rows, out) in the dtype of the weight."""
        y = F.linear(x.to(self.dtype), self.weight, self.bias)
        return activation(y) if activation else y

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x Wᵀ + b in float32."""
        if self.dtype != torch.float32:
            return residual + self(x)
        biased = residual if self.bias is None else residual + self.bias
        return torch.addmm(biased, x.to(self.dtype), self.weight.T)
