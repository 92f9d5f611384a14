"""Models whose parameters are divided between processes (FSDP2, ZeRO-3), for code that need not know of it.

A divided model is computed in a way that all processes share: every pass needs all of them, and parameters are there
only inside the forward pass of the root. `within` is that pass: it runs any function of the model there. `plain` gives
an ordinary model with all parameters, for sampling and saving.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.shared_prompt import forbid_sharing

Value = TypeVar("Value")
ROOT, SKELETON, WHOLE, WORKPLACE, ARITHMETIC = (
    f"_rlhf_lab_{name}" for name in ("root", "skeleton", "whole", "workplace", "arithmetic")
)
"""Kept in a module's `__dict__`, where PyTorch does not see a submodule."""


class Root(nn.Module):
    """The module that is known as the outermost one. Its forward pass is a function of what it holds."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.entered = model, False

    def forward(self, function: Callable[..., Value], *arguments: Any) -> Value:
        self.entered = True
        try:
            return function(*arguments)
        finally:
            self.entered = False

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """The forward pass, as other code asks for one."""
        return self(function, *arguments)


def within(model: nn.Module, function: Callable[..., Value], *arguments: Any) -> Value:
    """`function(*arguments)`, with the parameters of `model` gathered while it runs if they are divided."""
    root, dtype = model.__dict__.get(ROOT), model.__dict__.get(ARITHMETIC)
    device = next(model.parameters()).device.type if dtype else "cpu"
    if root is not None and root.entered:
        return function(*arguments)
    with torch.autocast(device, dtype=dtype, enabled=True) if dtype else nullcontext():
        return function(*arguments) if root is None else root.run(function, *arguments)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a model, the classes that Hugging Face says not to split; a bare head has none.

    Raises ConfigError for a transformer that does not name its blocks.
    """
    transformers = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    names = {name for part in transformers for name in part._no_split_modules or ()}
    found = [part for part in model.modules() if any(kind.__name__ in names for kind in type(part).__mro__)]
    if transformers and not found:
        raise ConfigError(
            f"{type(model).__name__} names no transformer blocks (_no_split_modules), so it cannot be divided or "
            "checkpointed block by block; use sharding=none or ddp without sharding.checkpointing"
        )
    return found


def divide(
    model: nn.Module,
    mesh: Any,
    *,
    reshard: bool,
    reshard_root: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Divide a model's parameters between the processes of a mesh, block by block, in place.

    Args:
        reshard: whether a block's parameters are freed after its forward pass.
        reshard_root: the same for what is outside the blocks: embeddings, last norm, head.
        dtype: of the blocks' gathered parameters; None is that of the parameters. Gradients are added up in float32.
            What is outside the blocks stays as it is, and all passes are under autocast: the numbers are those of
            autocast in one process, to the rounding of norm weights.
    """
    model.__dict__[SKELETON] = Skeleton(model, dtype)
    policy = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None, cast_forward_inputs=dtype is None
    )
    for block in blocks(model):
        if dtype:
            _normalise_in_float32(block)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    model.__dict__[ROOT] = fully_shard(Root(model), mesh=mesh, reshard_after_forward=reshard_root)
    model.__dict__[ARITHMETIC] = dtype


def divided_by(model: nn.Module, root: Root, whole: Callable[[nn.Parameter], torch.Tensor]) -> None:
    """Announce that a library is about to divide a model's parameters.

    Args:
        root: holds the model; the library gathers parameters in its forward pass.
        whole: gives a divided parameter as a tensor of its own. All processes must call it.
    """
    model.__dict__[SKELETON] = Skeleton(model, None)
    model.__dict__[ROOT], model.__dict__[WHOLE] = root, whole


def undivided(model: nn.Module) -> nn.Module:
    """A model of the same parameters, whole: for their names and shapes alone."""
    skeleton: Skeleton | None = model.__dict__.get(SKELETON)
    return model if skeleton is None else skeleton.tree


def halve(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep the blocks of a frozen model in `dtype`: it computes what a divided one does and takes half the memory."""
    for block in blocks(model):
        _normalise_in_float32(block)
        block.to(dtype)
    model.__dict__[ARITHMETIC] = dtype


def _normalise_in_float32(block: nn.Module) -> None:
    """Let layer norms with low parameters take inputs in float32: autocast raises the parameters on a GPU alone, and a
    CPU refuses the mixture."""
    for part in block.modules():
        if isinstance(part, nn.LayerNorm):
            part.forward = partial(_layer_norm, part)  # type: ignore[method-assign]


def _layer_norm(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    weight, bias = (None if p is None else p.float() for p in (norm.weight, norm.bias))
    return nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def settle(model: nn.Module) -> None:
    """Give back what passes left gathered: the model's own parameters are then the divided ones."""
    root = model.__dict__.get(ROOT)
    for part in root.modules() if root is not None else ():
        if isinstance(part, FSDPModule):
            part.reshard()


def blocks_dtype(model: nn.Module) -> torch.dtype | None:
    """What the blocks of a divided or halved model compute in; None for any other model."""
    return model.__dict__.get(ARITHMETIC)


def whole_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the state dict, divided tensors gathered one after another. All processes must iterate."""
    settle(model)
    for name, tensor in model.state_dict().items():
        yield name, (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


class Skeleton:
    """The module tree of a model with parameters that hold nothing, to be filled for a while."""

    def __init__(self, model: nn.Module, dtype: torch.dtype | None):
        self.dtype = dtype
        memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
        memo |= {id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in model.parameters()}
        self.tree = copy.deepcopy(model, memo)
        self.places: dict[int, list[tuple[nn.Module, str]]] = {}  # several where weights are tied
        for module in self.tree.modules():
            for leaf, parameter in module._parameters.items():
                if parameter is not None:
                    self.places.setdefault(id(parameter), []).append((module, leaf))
        self.empty = dict(self.tree.named_parameters())

    def fill(self, values: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, value in values:
            parameter = nn.Parameter(value, requires_grad=False)
            for module, leaf in self.places[id(self.empty[name])]:
                module._parameters[leaf] = parameter

    def clear(self) -> None:
        for parameter in self.empty.values():
            for module, leaf in self.places[id(parameter)]:
                module._parameters[leaf] = parameter


@contextmanager
def plain(model: nn.Module, *, to_save: bool = False) -> Iterator[nn.Module]:
    """The model itself, or an ordinary copy of a divided or halved one for the time of the block, of one dtype.

    All processes must enter.

    Args:
        to_save: the parameters as they are, in host memory of the main process alone; else in the dtype that the
            divided model computes in, on the device of every process.
    """
    skeleton: Skeleton | None = model.__dict__.get(SKELETON)
    if skeleton is None:
        dtype = model.__dict__.get(ARITHMETIC)
        yield copy.deepcopy(model).to(dtype) if dtype else model
        return
    skeleton.fill(_gathered(model, None if to_save else skeleton.dtype, to_save))
    try:
        yield skeleton.tree
    finally:
        skeleton.clear()


def _gathered(model: nn.Module, dtype: torch.dtype | None, to_save: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, whole parameter) of a divided model."""
    settle(model)
    gather: Callable[[nn.Parameter], torch.Tensor] = model.__dict__.get(WHOLE, torch.Tensor.detach)
    for name, parameter in model.named_parameters():
        own = parameter.detach().to(dtype or parameter.dtype)
        whole = own.full_tensor() if isinstance(own, DTensor) else gather(parameter)
        if not to_save:
            yield name, whole
        elif ranks.is_main():
            yield name, whole.cpu()


def checkpoint_blocks(model: nn.Module) -> Callable[[], None]:
    """Compute each block's activations again in the backward pass instead of keeping them. Returns what undoes it.

    A prompt shared by rows needs the blocks to fill a cache, which they would then do twice: it is not shared.
    """
    changed = blocks(model)
    for block in changed:
        block.forward = _recomputed(block.forward)
    undo = forbid_sharing(model)

    def restore() -> None:
        undo()
        for block in changed:
            del block.forward

    return restore


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named)

    return run


def keep_in_host_memory(model: nn.Module, device: str) -> None:
    """From now on the model is on the device only where it is `at_hand`."""
    model.__dict__[WORKPLACE] = device
    model.to("cpu")


@contextmanager
def at_hand(models: Sequence[nn.Module]) -> Iterator[None]:
    """Models that live in host memory are on their device for the time of the block."""
    away = [model for model in models if WORKPLACE in model.__dict__]
    for model in away:
        model.to(model.__dict__[WORKPLACE])
    try:
        yield
    finally:
        for model in away:
            model.to("cpu")
