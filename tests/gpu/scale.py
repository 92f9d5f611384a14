"""Model shapes of the kit, peak rates of GPUs, and how many operations and bytes a piece of work needs."""

from __future__ import annotations

from dataclasses import replace

import torch

from rlhf_lab.memory.sizes import ModelShape

QWEN3 = ModelShape("llama", 1024, 28, 16, 8, 128, 3072, 151936, head_norm=True, name="Qwen3 0.6B")
SHAPES = {
    "0.6b": QWEN3,
    "1.7b": replace(QWEN3, hidden=2048, mlp=6144, name="Qwen3 1.7B"),
    "4b": replace(QWEN3, hidden=2560, layers=36, heads=32, mlp=9728, name="Qwen3 4B"),
    "8b": replace(QWEN3, hidden=4096, layers=36, heads=32, mlp=12288, tied=False, name="Qwen3 8B"),
}
"""Sizes of public configs; the weights are random."""

TINY = replace(QWEN3, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=128, vocabulary=500, name="tiny")

PEAK_BF16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L4": 121e12, "4090": 165e12}
"""Dense bfloat16 products per second, from the makers' data sheets, by a part of the device's name."""
PEAK_BYTES_PER_S = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12, "L4": 0.3e12, "4090": 1.008e12}
"""Bytes of device memory read or written per second, from the same sheets (SXM parts; 80 GB for the A100)."""


def shape(name: str, tiny: bool) -> ModelShape:
    return TINY if tiny else SHAPES[name]


def peak(table: dict[str, float]) -> float | None:
    """The device's rate; None for a device that is in no table."""
    if not torch.cuda.is_available():
        return None
    device = torch.cuda.get_device_name()
    return next((rate for part, rate in table.items() if part in device), None)


def training_flops_per_token(model: ModelShape, length: int, *, adapter: bool = False) -> float:
    """Floating-point operations of forward and backward pass for a token of a row of `length` tokens.

    6 per parameter that a hidden state is multiplied by (2 forward, 4 backward; the output head counts, the token
    embedding does not), and causal attention: 2 products of (length / 2) × (heads · head_dim), 2 operations each,
    three times over. With an adapter on a frozen base there is no gradient of the base's weights: 4 per parameter.
    What checkpointing computes again is not counted, as usual for model FLOPs utilisation (arXiv:2204.02311, app. B).
    """
    matrices = model.layers * sum(inputs * outputs for inputs, outputs in model.matrices.values())
    parameters = matrices + model.vocabulary * model.hidden
    attention = 2 * 2 * (length / 2) * model.heads * model.head_dim * model.layers
    return (4 if adapter else 6) * parameters + 3 * attention


def decoding_bytes_per_step(model: ModelShape, rows: int, length: float) -> float:
    """Bytes read by one decoding step in bfloat16: all weights once, and the KV cache of every row."""
    matrices = model.layers * sum(inputs * outputs for inputs, outputs in model.matrices.values())
    cache = 2 * model.layers * model.kv_heads * model.head_dim * length * rows
    return 2 * (matrices + model.vocabulary * model.hidden) + 2 * cache
