"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlhf_lab.training.settings import TrainingSettings


class Part(NamedTuple):
    """A module that is trained, and its peak learning rates. Without `muon_lr` all of it goes to AdamW."""

    module: nn.Module
    lr: float
    muon_lr: float | None = None


class Optimizers:
    """AdamW, or Muon on hidden matrices with AdamW on the rest, for every trained part, stepped as one.

    Muon (arXiv:2502.16982) orthogonalises the update of a matrix; embeddings, heads, norms and biases are not matrices
    in that sense and stay with AdamW.

    Args:
        keep_gradients: a gradient has a place of its own that is filled with 0 after a step, not given up.
    """

    def __init__(self, parts: Mapping[str, Part], settings: TrainingSettings, *, keep_gradients: bool = False):
        self.settings, self.keep_gradients = settings, keep_gradients
        self.trained: dict[str, list[nn.Parameter]] = {}
        self.names: dict[int, str] = {}
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = []
        for name, part in parts.items():
            self._add(name, part)

    def _add(self, name: str, part: Part) -> None:
        trainable = [(n, p) for n, p in part.module.named_parameters() if p.requires_grad]
        hidden = [p for n, p in trainable if part.muon_lr is not None and _is_hidden_matrix(n, p)]
        taken = {id(p) for p in hidden}
        rest = [p for _, p in trainable if id(p) not in taken]
        groups = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas, eps = (self.settings.adam_betas[0], self.settings.adam_betas[1]), self.settings.adam_eps
        self.trained[name] = [p for _, p in trainable]
        self.names |= {id(p): f"{name}/{n}" for n, p in trainable}
        if rest:
            adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=part.lr, betas=betas, eps=eps, fused=True)
            self.optimizers.append((adamw, part.lr))
        if hidden and part.muon_lr is not None:
            muon = torch.optim.Muon(hidden, lr=part.muon_lr, weight_decay=self.settings.weight_decay)
            self.optimizers.append((muon, part.muon_lr))

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradient of each part to `max_grad_norm`. Returns their norms before clipping."""
        limit = self.settings.max_grad_norm
        norms = {name: nn.utils.clip_grad_norm_(parameters, limit) for name, parameters in self.trained.items()}
        return {name: norm.full_tensor() if isinstance(norm, DTensor) else norm for name, norm in norms.items()}

    def step(self, scale: float) -> None:
        """One update at `scale` times the peak learning rates."""
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients without a step."""
        for optimizer, _ in self.optimizers:
            optimizer.zero_grad(set_to_none=not self.keep_gradients)

    def tensors(self) -> dict[str, Tensor]:
        """What the optimisers remember: "part/parameter/name of the moment" → tensor."""
        return {
            f"{self.names[id(parameter)]}/{key}": value
            for optimizer, _ in self.optimizers
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, names: Iterable[str], like: Callable[[str, Tensor], Tensor]) -> None:
        """Inverse of `tensors`.

        Args:
            names: of what was saved.
            like: (name, parameter) → the tensor, divided between processes as the parameter is if it has its shape.
        """
        stored: dict[str, list[str]] = {}
        for name in names:
            parameter, _, key = name.rpartition("/")
            stored.setdefault(parameter, []).append(key)
        for optimizer, _ in self.optimizers:
            packed = optimizer.state_dict()
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            packed["state"] = {
                i: {key: like(f"{self.names[id(p)]}/{key}", p) for key in stored.get(self.names[id(p)], ())}
                for i, p in enumerate(parameters)
            }
            packed["state"] = {i: state for i, state in packed["state"].items() if state}
            optimizer.load_state_dict(packed)


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
