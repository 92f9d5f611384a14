"""Ensembles of reward models: scored in one batched forward pass, or averaged into one model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from rlhf_lab.models.build import reward_outputs
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import has_adapter, merged
from rlhf_lab.models.weights import has_products, stored_as


def same_shape(models: Sequence[nn.Module]) -> bool:
    """Return True if all models have the same class, and tensors of the same names and shapes."""

    shapes = [(type(model), {name: tensor.shape for name, tensor in model.state_dict().items()}) for model in models]
    return all(shape == shapes[0] for shape in shapes)


def stackable(models: Sequence[nn.Module]) -> bool:
    """Return True if `StackedModels` supports these models; otherwise they run one by one."""
    # vmap cannot batch other kinds, such as flash attention
    attention_kinds = {getattr(model.config, "_attn_implementation", None) for model in models}
    can_batch = attention_kinds <= {"sdpa", "eager"} and all(map(_is_plain, models))
    return len(models) > 1 and same_shape(models) and can_batch


def _is_plain(model: nn.Module) -> bool:
    """Return True if a model consists of float32 tensors, without adapters or quantised weights."""
    return not has_adapter(model) and not has_products(model) and stored_as(model) == "float32"


class StackedModels:
    """Models of one architecture that share one forward pass: every product is batched over the members.

    This pays if starting a kernel costs more than running it, as on a GPU. On one CPU thread it does not: three models
    of 0.15M parameters take as long stacked as one by one at 1 to 8 rows, and 1.3 times as long at 64 to 256 rows.

    The models' own tensors become views of the stacked ones, so no memory is used twice.
    """

    def __init__(self, models: Sequence[nn.Module]):
        self.parameters, self.buffers = stack_module_state(list(models))
        self.parameters = {name: stacked.detach() for name, stacked in self.parameters.items()}
        for k, model in enumerate(models):
            for name, parameter in model.named_parameters():
                parameter.data = self.parameters[name][k]
        # vmap calls one structure with the stacked parameters of all members
        self.skeleton = _Outputs(copy.deepcopy(models[0]).to("meta"))  # the structure alone, without values
        self._all_members = torch.vmap(self._member_outputs, in_dims=(0, 0, None))

    @torch.no_grad()
    def outputs(self, batch: TokenBatch) -> Tensor:
        """Return `reward_outputs` of each member, (K, B, outputs), float32."""
        return self._all_members(self.parameters, self.buffers, batch)

    def _member_outputs(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: TokenBatch) -> Tensor:
        # `functional_call` expects the names of `_Outputs`, whose submodule is `model`
        state = {f"model.{name}": value for name, value in (parameters | buffers).items()}
        return functional_call(self.skeleton, state, (batch,))


class _Outputs(nn.Module):
    """`reward_outputs` as a module, which `functional_call` requires."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: TokenBatch) -> Tensor:
        return reward_outputs(self.model, batch)


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
