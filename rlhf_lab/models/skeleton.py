"""The module tree of a model without the values of its parameters.

It has two uses. A sharded model has a skeleton that can be filled with gathered values and emptied again
(`sharded.unsharded`). A model that will be sharded is read only by the main process (`placed`). The other processes get
its module tree, and receive its values module by module while they shard it (`receive`). No two processes of a machine
therefore hold the full model in host memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from rlhf_lab.core import ranks

MAIN = "main"
"""Special device for a model that will be sharded: host memory of the main process only."""


class Skeleton:
    """A model with parameters on the meta device, which can be filled with values and emptied again.

    Attributes:
        tree: module tree of the model; it shares the buffers of the original.
        dtype: dtype of gathered values; None keeps theirs.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None):
        self.dtype = dtype
        # deepcopy uses the objects in its memo instead of copying: buffers are shared, parameters get no values.
        memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        self.tree = copy.deepcopy(model, memo)
        self._empty_parameters = dict(self.tree.named_parameters())
        self._owners: dict[int, list[tuple[nn.Module, str]]] = {}  # tied weights have several owners
        for module in self.tree.modules():
            for attribute, empty in module._parameters.items():
                if empty is not None:
                    self._owners.setdefault(id(empty), []).append((module, attribute))

    def fill(self, values: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Put the (name, value) of each parameter into the tree."""
        for name, value in values:
            self._put(self._empty_parameters[name], nn.Parameter(value, requires_grad=False))

    def clear(self, names: Iterable[str] | None = None) -> None:
        """Put the empty parameters back, so that the values can be freed: all of them, or those in `names`."""
        for name in self._empty_parameters if names is None else names:
            empty = self._empty_parameters[name]
            self._put(empty, empty)

    def _put(self, empty: nn.Parameter, parameter: nn.Parameter) -> None:
        for module, attribute in self._owners[id(empty)]:
            module._parameters[attribute] = parameter


def placed(build: Callable[[str], nn.Module], device: str) -> nn.Module:
    """Return the model that `build` creates on a device.

    For `MAIN` the main process builds it in host memory. The others get its module tree with buffers, and with
    parameters that have no values until `receive`. All processes must call `placed` if the device is `MAIN`, and an
    error is raised in all.
    """
    if device != MAIN:
        return build(device)
    models: list[nn.Module] = []

    def build_on_main() -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # keeps the random state equal to the other processes'
            models.append(build("cpu"))
        return Skeleton(models[0], None).tree

    tree = ranks.on_main(build_on_main)
    return models[0] if models else tree


def receive(module: nn.Module, device: torch.device | str) -> None:
    """Give a module's parameters the values of the main process, on `device`. All processes must call it.

    Parameters that are already sharded have their values and are skipped.
    """
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            continue
        if ranks.is_main():
            value = parameter.detach().to(device).contiguous()
        else:
            value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        dist.broadcast(value, src=0)
        if parameter.is_meta:
            # swapped instead of replaced: a tied weight stays one parameter in all modules that own it
            torch.utils.swap_tensors(parameter, nn.Parameter(value, parameter.requires_grad))
        else:
            parameter.data = value
