"""Access to models whose parameters are sharded over processes (FSDP2, ZeRO-3), for code that need not know of it.

Every pass through a sharded model needs all processes, and its parameters exist only inside the forward pass of the
root module. `within` runs any function of the model inside such a pass. `unsharded` returns an ordinary model with all
parameters, for sampling and saving.
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
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.models.skeleton import Skeleton, receive

Value = TypeVar("Value")

# Keys under which properties of a model are stored in its `__dict__`. Assigned as an attribute, the root would become a
# submodule of the model that it contains.
ROOT = "_rlhf_lab_root"
SKELETON = "_rlhf_lab_skeleton"
GATHER_PARAMETER = "_rlhf_lab_whole"
COMPUTE_DEVICE = "_rlhf_lab_workplace"
BLOCKS_DTYPE = "_rlhf_lab_arithmetic"
HALVED = "_rlhf_lab_halved"


class Root(nn.Module):
    """The outermost module of a sharded model. Its forward pass runs any function of the model it contains.

    FSDP2 and ZeRO-3 gather parameters in the forward pass of a root module. The log-probability function needs them but
    is not a module's forward pass: it calls the backbone and reads the head's weight itself.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.entered = False

    def forward(self, function: Callable[..., Value], *arguments: Any) -> Value:
        self.entered = True
        try:
            return function(*arguments)
        finally:
            self.entered = False


def within(model: nn.Module, function: Callable[..., Value], *arguments: Any) -> Value:
    """Return `function(*arguments)`; sharded parameters of `model` are gathered while it runs."""
    root = model.__dict__.get(ROOT)
    dtype = model.__dict__.get(BLOCKS_DTYPE)
    device = next(model.parameters()).device.type if dtype else "cpu"
    if root is not None and root.entered:  # nested call within a pass of the same model: parameters are gathered
        return function(*arguments)
    with torch.autocast(device, dtype=dtype, enabled=True) if dtype else nullcontext():
        return function(*arguments) if root is None else root(function, *arguments)


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the transformer blocks of a model (`_no_split_modules` of Hugging Face); a bare head has none.

    Raises ConfigError for a transformer that does not name its blocks.
    """
    transformers = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    block_names = {name for transformer in transformers for name in transformer._no_split_modules or ()}

    def is_block(module: nn.Module) -> bool:
        # FSDP2 replaces the class of a sharded module by a subclass with another name, so base classes are checked.
        return any(base.__name__ in block_names for base in type(module).__mro__)

    block_modules = [module for module in model.modules() if is_block(module)]
    if transformers and not block_modules:
        raise ConfigError(
            f"{type(model).__name__} names no transformer blocks (_no_split_modules), so it cannot be sharded or "
            "checkpointed block by block; set sharding=none or ddp without sharding.checkpointing"
        )
    return block_modules


def divide(
    model: nn.Module, mesh: Any, *, reshard: bool, reshard_root: bool = False, dtype: torch.dtype | None = None
) -> None:
    """Shard a model's parameters over the processes of a mesh, block by block, in place.

    The values are those of the main process; the other processes may have none yet (`skeleton.placed`).

    Args:
        reshard: True to free a block's full parameters after its forward pass.
        reshard_root: True to free those outside the blocks as well: embeddings, last norm, head.
        dtype: dtype of the blocks' gathered parameters; None is that of the parameters. Gradients are summed in
            float32. Parameters outside the blocks keep their dtype, and all passes run under autocast. The results are
            those of autocast in one process, up to the rounding of norm weights.
    """
    model.__dict__[SKELETON] = Skeleton(model, dtype)  # before sharding, while the parameters have their full shapes
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.float32 if dtype else None,
        cast_forward_inputs=dtype is None,  # a cast would take the residual stream out of float32, unlike autocast
    )
    for block in blocks(model):
        if dtype:
            _normalise_in_float32(block)
        receive(block, mesh.device_type)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    receive(model, mesh.device_type)  # parameters outside the blocks
    model.__dict__[ROOT] = fully_shard(Root(model), mesh=mesh, reshard_after_forward=reshard_root)
    if dtype:
        compute_in(model, dtype)


def shard_model(model: nn.Module, root: Root, full: Callable[[nn.Parameter], torch.Tensor]) -> None:
    """Register in a model how its parameters are gathered, before a library shards them.

    Args:
        root: module that contains the model; the library gathers parameters in its forward pass.
        full: function that returns a sharded parameter as a full tensor. All processes must call it.
    """
    model.__dict__[SKELETON] = Skeleton(model, None)
    model.__dict__[ROOT] = root
    model.__dict__[GATHER_PARAMETER] = full


def undivided(model: nn.Module) -> nn.Module:
    """Return the module tree with parameters of full shape but without values, to read names and shapes from."""
    skeleton: Skeleton | None = model.__dict__.get(SKELETON)
    return model if skeleton is None else skeleton.tree


def cast_blocks(model: nn.Module, dtype: torch.dtype) -> None:
    """Store the blocks of a frozen model in `dtype`: same results as a sharded model, with half the memory."""
    for block in blocks(model):
        _normalise_in_float32(block)
        _with_parameters_in(block, dtype)
    model.__dict__[HALVED] = True
    compute_in(model, dtype)


def _with_parameters_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a module's parameters in place. Buffers keep their dtype, because rotary frequencies need full precision."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Run every pass of a model under autocast with this dtype."""
    model.__dict__[BLOCKS_DTYPE] = dtype


def _normalise_in_float32(block: nn.Module) -> None:
    """Let layer norms with bfloat16 parameters accept float32 inputs.

    Autocast converts the parameters to float32 only on a GPU, and a CPU rejects mixed dtypes.
    """
    for module in block.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = partial(_layer_norm, module)  # type: ignore[method-assign]


def _layer_norm(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    weight = None if norm.weight is None else norm.weight.float()
    bias = None if norm.bias is None else norm.bias.float()
    return nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def free_gathered(model: nn.Module) -> None:
    """Free parameters that passes left gathered, so that the model's own parameters are the sharded ones again."""
    root = model.__dict__.get(ROOT)
    if root is None:
        return
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def blocks_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the dtype in which the blocks of a sharded, cast or stored model compute; None for any other model."""
    return model.__dict__.get(BLOCKS_DTYPE)


def full_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of the state dict, gathering one sharded tensor at a time. All processes must iterate."""
    free_gathered(model)
    for name, tensor in model.state_dict().items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        yield name, full.detach()


@contextmanager
def unsharded(model: nn.Module, *, to_save: bool = False) -> Iterator[nn.Module]:
    """Yield a model that is not sharded and has one dtype: the model itself, or a full copy of a sharded or cast one.

    All processes must enter.

    Args:
        to_save: True to keep the dtype of the parameters, in host memory of the main process only. Otherwise they have
            the dtype in which the sharded model computes, on the device of every process.
    """
    skeleton: Skeleton | None = model.__dict__.get(SKELETON)
    if skeleton is None:
        if HALVED in model.__dict__:
            model = _with_parameters_in(copy.deepcopy(model), model.__dict__[BLOCKS_DTYPE])
        yield model
        return
    dtype = None if to_save else skeleton.dtype
    skeleton.fill(_gather_parameters(model, dtype, to_save))
    try:
        yield skeleton.tree
    finally:
        skeleton.clear()


def _gather_parameters(
    model: nn.Module, dtype: torch.dtype | None, to_save: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, full parameter) of a sharded model, one after another. All processes must iterate."""
    free_gathered(model)
    gather_parameter: Callable[[nn.Parameter], torch.Tensor] | None = model.__dict__.get(GATHER_PARAMETER)
    for name, parameter in model.named_parameters():
        full = gather_parameter(parameter) if gather_parameter else gather(parameter, dtype)
        if not to_save:
            yield name, full
        elif ranks.is_main():
            yield name, full.cpu()  # moved at once, so that the device never holds more than one full parameter


def gather(parameter: nn.Parameter, dtype: torch.dtype | None) -> torch.Tensor:
    """Gather a parameter that FSDP has sharded, and return the full tensor.

    None keeps its dtype. All processes must call it.
    """
    shard = parameter.detach().to(dtype or parameter.dtype)  # cast before the exchange, which then moves fewer bytes
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def checkpoint_blocks(model: nn.Module) -> Callable[[], None]:
    """Recompute each block's activations in the backward pass instead of keeping them. Returns a function to undo this.

    Each batch is then one pass: blocks that fill a cache for a second pass would fill it again in the backward pass.
    """
    checkpointed = blocks(model)
    for block in checkpointed:
        block.forward = _recomputing(block.forward)
    allow_two_passes_again = forbid_two_passes(model)

    def restore() -> None:
        allow_two_passes_again()
        for block in checkpointed:
            del block.forward  # removes the instance's attribute, which hides the method of the class

    return restore


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `forward` with activation checkpointing while gradients are recorded."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # no random state is saved for the recomputation, because models are loaded without dropout
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run


def keep_in_host_memory(model: nn.Module, device: str) -> None:
    """Move a model to host memory; from then on `at_hand` moves it to the device whenever it is needed."""
    model.__dict__[COMPUTE_DEVICE] = device
    model.to("cpu")


@contextmanager
def at_hand(models: Sequence[nn.Module]) -> Iterator[None]:
    """Move models that live in host memory to their device while the context is open."""
    offloaded = [model for model in models if COMPUTE_DEVICE in model.__dict__]
    for model in offloaded:
        model.to(model.__dict__[COMPUTE_DEVICE])
    try:
        yield
    finally:
        for model in offloaded:
            model.to("cpu")
