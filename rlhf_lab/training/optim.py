"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.training.settings import TrainingSettings


class TrainedPart(NamedTuple):
    """A trained module and its peak learning rates. Without `muon_lr` all of its parameters use AdamW."""

    module: nn.Module
    lr: float
    muon_lr: float | None = None


class Optimizers:
    """AdamW, or Muon on hidden matrices with AdamW on the rest, for every trained part, stepped together.

    `adamw_8bit` stores the optimizer state of matrices in one byte per element, with one scale per block of 256
    (arXiv:2110.02861).

    Muon (arXiv:2502.16982) orthogonalises the update of a matrix. Embeddings, heads, norms and biases are not hidden
    matrices and use AdamW.

    Args:
        keep_gradients: True to set gradients to 0 after a step instead of freeing them.
    """

    def __init__(self, parts: Mapping[str, TrainedPart], settings: TrainingSettings, *, keep_gradients: bool = False):
        self.settings, self.keep_gradients = settings, keep_gradients
        self.trained: dict[str, list[nn.Parameter]] = {}
        self.names: dict[int, str] = {}
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = []
        for name, part in parts.items():
            self._add_part(name, part)

    def _add_part(self, name: str, part: TrainedPart) -> None:
        trainable = [(n, p) for n, p in part.module.named_parameters() if p.requires_grad]
        self.trained[name] = [p for _, p in trainable]
        self.names |= {id(p): f"{name}/{n}" for n, p in trainable}
        # Muon and AdamW need disjoint lists. Parameters are compared by id, because == on tensors is element-wise.
        muon_parameters = [p for n, p in trainable if part.muon_lr is not None and _is_hidden_matrix(n, p)]
        muon_ids = {id(p) for p in muon_parameters}
        adamw_parameters = [p for _, p in trainable if id(p) not in muon_ids]
        if adamw_parameters:
            beta_1, beta_2 = self.settings.adam_betas
            groups = [
                {"params": [p for p in adamw_parameters if p.ndim >= 2], "weight_decay": self.settings.weight_decay},
                # norms and biases have no weight decay
                {"params": [p for p in adamw_parameters if p.ndim < 2], "weight_decay": 0.0},
            ]
            make_adamw: Any = _adamw_8bit() if self.settings.optimizer == "adamw_8bit" else _FUSED_ADAMW
            adamw = make_adamw(
                [group for group in groups if group["params"]],
                lr=part.lr,
                betas=(beta_1, beta_2),
                eps=self.settings.adam_eps,
            )
            self.optimizers.append((adamw, part.lr))
        if muon_parameters and part.muon_lr is not None:
            muon = torch.optim.Muon(muon_parameters, lr=part.muon_lr, weight_decay=self.settings.weight_decay)
            self.optimizers.append((muon, part.muon_lr))

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradient of each part to `max_grad_norm` and return the norms before clipping."""
        max_norm = self.settings.max_grad_norm
        norms = {name: nn.utils.clip_grad_norm_(parameters, max_norm) for name, parameters in self.trained.items()}
        # For sharded gradients each process has a partial norm until `full_tensor` reduces it.
        return {name: norm.full_tensor() if isinstance(norm, DTensor) else norm for name, norm in norms.items()}

    def step(self, scale: float) -> None:
        """Update the parameters at `scale` times the peak learning rates."""
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients without a step."""
        for optimizer, _ in self.optimizers:
            optimizer.zero_grad(set_to_none=not self.keep_gradients)

    def tensors(self) -> dict[str, Tensor]:
        """Return the optimizer state: "part/parameter/name of the state" → tensor."""
        return {
            f"{self.names[id(parameter)]}/{key}": torch.as_tensor(
                value
            )  # bitsandbytes stores its step count as a number
            for optimizer, _ in self.optimizers
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, names: Iterable[str], tensor_like: Callable[[str, Tensor], Tensor]) -> None:
        """Restore the result of `tensors`.

        Args:
            names: names of the saved tensors.
            tensor_like: (name, parameter) → saved tensor, sharded like the parameter if it has the same shape.
        """
        optimizer_state: dict[str, list[str]] = {}
        for name in names:
            parameter_name, _, moment = name.rpartition("/")
            optimizer_state.setdefault(parameter_name, []).append(moment)
        for optimizer, _ in self.optimizers:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            states: dict[int, dict[str, Any]] = {}
            for index, parameter in enumerate(parameters):
                prefix = self.names[id(parameter)]
                state: dict[str, Any] = {
                    moment: tensor_like(f"{prefix}/{moment}", parameter) for moment in optimizer_state.get(prefix, ())
                }
                if state and self.settings.optimizer == "adamw_8bit":
                    state["step"] = int(state["step"])
                if state:  # a parameter that never had a gradient has no state
                    states[index] = state
            optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


_FUSED_ADAMW = partial(torch.optim.AdamW, fused=True)


def _adamw_8bit() -> type[torch.optim.Optimizer]:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["bitsandbytes"]) from error
    adamw: type[torch.optim.Optimizer] = AdamW8bit
    return adamw


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    # Name parts of embeddings and heads in GPT-2, Llama and reward models.
    not_hidden = ("embed", "wte", "wpe", "lm_head", "score")
    return parameter.ndim == 2 and not any(layer in name for layer in not_hidden)


def lr_scale(step: int, total: int, *, warmup_fraction: float, final_fraction: float) -> float:
    """Return the fraction of the peak rate at `step` of `total`: linear warm-up, cosine decay to `final_fraction`."""
    warmup = math.ceil(round(warmup_fraction * total, 9))  # rounded, because 0.07 · 100 is 7.000000000000001
    if step < warmup:  # step + 1, so that the first step already has a rate above 0
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    cosine = 1 + math.cos(math.pi * progress)  # from 2 down to 0
    return final_fraction + (1 - final_fraction) * 0.5 * cosine
