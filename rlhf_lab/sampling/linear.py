"""Projections for decoding: a copy of the weights that is packed for the CPU, or the model's own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from rlhf_lab.models.lora import base_layer, effective_weight

Activation = Callable[[Tensor], Tensor]
# Hugging Face's name → (function, oneDNN's name, oneDNN's variant)
ACTIVATIONS: dict[str, tuple[Activation, str, str]] = {
    "silu": (F.silu, "swish", ""),
    "gelu": (F.gelu, "gelu", "none"),
    "gelu_new": (partial(F.gelu, approximate="tanh"), "gelu", "tanh"),
    "gelu_pytorch_tanh": (partial(F.gelu, approximate="tanh"), "gelu", "tanh"),
    "relu": (F.relu, "relu", ""),
}
# Below these numbers of weights, the setup of a oneDNN call costs more than its matmul saves over a float32 product.
PACK_FROM = {torch.float32: 2**18, torch.bfloat16: 2**15}


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Return True if oneDNN's packed linear layer exists in this build for this dtype and gives correct results."""
    # The operators are private to torch and may change, so they are tried once per dtype.
    try:
        x = torch.linspace(-1, 1, 96).view(3, 32).to(dtype)
        weight = torch.linspace(-1, 1, 1536).view(48, 32).to(dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        y = torch.ops.mkldnn._linear_pointwise(
            x,
            packed,
            None,
            "relu",
            [],
            "",
        )
        expected = F.linear(x, weight).relu()
        return torch.allclose(y.float(), expected.float(), atol=0.1)
    except (AttributeError, RuntimeError, TypeError):
        return False


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

    def __call__(self, x: Tensor, activation: tuple[Activation, str, str] | None = None) -> Tensor:
        """(rows, in) → (rows, out), bfloat16."""
        y = torch.cat([source(x) for source in self.sources], dim=-1)
        return activation[0](y) if activation else y

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x Wᵀ + b in float32."""
        return residual + self(x)


class Linear:
    """x ↦ x Wᵀ + b. Large weights are packed by oneDNN, which is 1.2 to 2 times as fast as `F.linear`.

    On a CPU a small bfloat16 weight is multiplied in float32, which is faster and no less exact.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        on_cpu = weight.device.type == "cpu"
        pack_from = PACK_FROM.get(weight.dtype, 0)
        is_large = pack_from > 0 and weight.numel() >= pack_from
        self.packed = on_cpu and is_large and _packs(weight.dtype)
        if on_cpu and not self.packed and weight.numel() < pack_from:
            weight = weight.float()
            bias = None if bias is None else bias.float()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()) if self.packed else weight
        self.bias = bias
        self.dtype = weight.dtype

    def __call__(self, x: Tensor, activation: tuple[Activation, str, str] | None = None) -> Tensor:
        """(rows, in) → (rows, out) in the dtype of the weight."""
        function, onednn_name, variant = activation or (None, "none", "")
        x = x.to(self.dtype)
        if self.packed and onednn_name:
            return torch.ops.mkldnn._linear_pointwise(
                x,
                self.weight,
                self.bias,
                onednn_name,
                [],
                variant,
            )
        y = self(x) if self.packed else F.linear(x, self.weight, self.bias)
        return function(y) if function else y

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x Wᵀ + b in float32."""
        if self.dtype != torch.float32:
            return residual + self(x)
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(
                x,
                residual,
                self.weight,
                self.bias,
                "add",
            )
        biased = residual if self.bias is None else residual + self.bias
        return torch.addmm(biased, x, self.weight.T)
