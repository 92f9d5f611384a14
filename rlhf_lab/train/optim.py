"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from rlhf_lab.train.settings import TrainingSettings


class Optimizers:
    """AdamW, or Muon on hidden matrices with AdamW on the rest, stepped as one.

    Muon (arXiv:2502.16982) orthogonalises the update of a matrix; embeddings, heads, norms and biases are not matrices
    in that sense and stay with AdamW.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings):
        trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        hidden = [p for name, p in trainable if settings.optimizer == "muon" and _is_hidden_matrix(name, p)]
        taken = {id(p) for p in hidden}
        rest = [p for _, p in trainable if id(p) not in taken]
        groups = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        lr, eps = settings.lr or 0.0, settings.adam_eps
        betas = (settings.adam_betas[0], settings.adam_betas[1])
        self.parameters = [p for _, p in trainable]
        self.parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps, fused=True), lr)
        ]
        if hidden:
            muon_lr = settings.muon_lr or 0.0
            self.parts.append((torch.optim.Muon(hidden, lr=muon_lr, weight_decay=settings.weight_decay), muon_lr))

    def step(self, scale: float) -> None:
        """One update at `scale` times the peak learning rates."""
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer, _ in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for (optimizer, _), state in zip(self.parts, states, strict=True):
            optimizer.load_state_dict(state)


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    outside = ("embed", "wte", "wpe", "lm_head", "score")
    return parameter.ndim == 2 and not any(part in name for part in outside)


def lr_scale(step: int, total: int, *, warmup_fraction: float, final_fraction: float) -> float:
    """Share of the peak rate at `step` of `total`: linear warm-up, then cosine decay to `final_fraction`."""
    warmup = math.ceil(warmup_fraction * total)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))
