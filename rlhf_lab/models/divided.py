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
from rlhf_lab.models.shared_prompt import forbid_two_passes
from rlhf_lab.models.skeleton import Skeleton, receive

Value = TypeVar("Value")

# Keys of what is noted about a model in its `__dict__`. Assigned as an attribute, the root would be registered as a
# submodule of the very model it holds.
ROOT = "_rlhf_lab_root"
SKELETON = "_rlhf_lab_skeleton"
GATHER_PARAMETER = "_rlhf_lab_whole"
COMPUTE_DEVICE = "_rlhf_lab_workplace"
BLOCKS_DTYPE = "_rlhf_lab_arithmetic"
HALVED = "_rlhf_lab_halved"


class Root(nn.Module):
    """The outermost module of a divided model. Its forward pass runs any function of the model it holds.

    FSDP2 and ZeRO-3 gather parameters in the forward pass of a root module. The log-probability function needs them and
    is no module's forward pass: it calls the backbone and reads the head's weight itself.
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

    def run(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Run the forward pass with its hooks, which gather the parameters."""
        return self(function, *arguments)


def within(model: nn.Module, function: Callable[..., Value], *arguments: Any) -> Value:
    """`function(*arguments)`, with the parameters of `model` gathered while it runs if they are divided."""
    root = model.__dict__.get(ROOT)
    dtype = model.__dict__.get(BLOCKS_DTYPE)
    device = next(model.parameters()).device.type if dtype else "cpu"
    if root is not None and root.entered:  # a call inside a pass of the same model: everything is gathered already
        return function(*arguments)
    with torch.autocast(device, dtype=dtype, enabled=True) if dtype else nullcontext():
        if root is None:
            return function(*arguments)
        return root.run(function, *arguments)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a model, the classes that Hugging Face says not to split; a bare head has none.

    Raises ConfigError for a transformer that does not name its blocks.
    """
    transformers = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    block_names = {name for transformer in transformers for name in transformer._no_split_modules or ()}

    def is_block(module: nn.Module) -> bool:
        # FSDP2 replaces the class of what it divides by a subclass of another name.
        return any(base.__name__ in block_names for base in type(module).__mro__)

    block_modules = [module for module in model.modules() if is_block(module)]
    if transformers and not block_modules:
        raise ConfigError(
            f"{type(model).__name__} names no transformer blocks (_no_split_modules), so it cannot be divided or "
            "checkpointed block by block; use sharding=none or ddp without sharding.checkpointing"
        )
    return block_modules


def divide(
    model: nn.Module,
    mesh: Any,
    *,
    reshard: bool,
    reshard_root: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Divide a model's parameters between the processes of a mesh, block by block, in place.

    The values are those of the main process; the others may have none yet (`skeleton.placed`).

    Args:
        reshard: whether a block's parameters are freed after its forward pass.
        reshard_root: the same for what is outside the blocks: embeddings, last norm, head.
        dtype: of the blocks' gathered parameters; None is that of the parameters. Gradients are added up in float32.
            What is outside the blocks stays as it is, and all passes are under autocast: the numbers are those of
            autocast in one process, to the rounding of norm weights.
    """
    model.__dict__[SKELETON] = Skeleton(model, dtype)  # now, while the parameters still have their whole shapes
    policy = MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.float32 if dtype else None,
        cast_forward_inputs=dtype is None,  # else the residual stream would leave float32, as autocast's does not
    )
    for block in blocks(model):
        if dtype:
            _normalise_in_float32(block)
        receive(block, mesh.device_type)
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    receive(model, mesh.device_type)  # what is outside the blocks
    model.__dict__[ROOT] = fully_shard(Root(model), mesh=mesh, reshard_after_forward=reshard_root)
    if dtype:
        compute_in(model, dtype)


def divided_by(model: nn.Module, root: Root, whole: Callable[[nn.Parameter], torch.Tensor]) -> None:
    """Announce that a library is about to divide a model's parameters.

    Args:
        root: holds the model; the library gathers parameters in its forward pass.
        whole: gives a divided parameter as a tensor of its own. All processes must call it.
    """
    model.__dict__[SKELETON] = Skeleton(model, None)
    model.__dict__[ROOT] = root
    model.__dict__[GATHER_PARAMETER] = whole


def undivided(model: nn.Module) -> nn.Module:
    """The module tree with parameters of their whole shapes and no values, to read names and shapes from."""
    skeleton: Skeleton | None = model.__dict__.get(SKELETON)
    return model if skeleton is None else skeleton.tree


def halve(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep the blocks of a frozen model in `dtype`: it computes what a divided one does and takes half the memory."""
    for block in blocks(model):
        _normalise_in_float32(block)
        _with_parameters_in(block, dtype)
    model.__dict__[HALVED] = True
    compute_in(model, dtype)


def _with_parameters_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Round a module's parameters, in place. Buffers stay: frequencies of rotary embeddings need all their digits."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let every pass of a model be under autocast of this dtype."""
    model.__dict__[BLOCKS_DTYPE] = dtype


def _normalise_in_float32(block: nn.Module) -> None:
    """Let layer norms with bfloat16 parameters take float32 inputs.

    Autocast raises the parameters to float32 on a GPU alone, and a CPU refuses the mixture of dtypes.
    """
    for module in block.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = partial(_layer_norm, module)  # type: ignore[method-assign]


def _layer_norm(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    weight = None if norm.weight is None else norm.weight.float()
    bias = None if norm.bias is None else norm.bias.float()
    return nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def settle(model: nn.Module) -> None:
    """Free what passes left gathered, so that the model's own parameters are the divided ones again."""
    root = model.__dict__.get(ROOT)
    if root is None:
        return
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def blocks_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype that the blocks of a divided, halved or stored model compute in; None for any other model."""
    return model.__dict__.get(BLOCKS_DTYPE)


def whole_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the state dict, divided tensors gathered one after another. All processes must iterate."""
    settle(model)
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        yield name, whole.detach()


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
    """(name, whole parameter) of a divided model, one after another. All processes must iterate."""
    settle(model)
    gather_parameter: Callable[[nn.Parameter], torch.Tensor] | None = model.__dict__.get(GATHER_PARAMETER)
    for name, parameter in model.named_parameters():
        whole = gather_parameter(parameter) if gather_parameter else gather(parameter, dtype)
        if not to_save:
            yield name, whole
        elif ranks.is_main():
            yield name, whole.cpu()  # at once: the device never holds more than one whole parameter


def gather(parameter: nn.Parameter, dtype: torch.dtype | None) -> torch.Tensor:
    """A parameter that FSDP has divided as a tensor of its own; None keeps its dtype. All processes must call it."""
    shard = parameter.detach().to(dtype or parameter.dtype)  # cast first: less to exchange
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def checkpoint_blocks(model: nn.Module) -> Callable[[], None]:
    """Compute each block's activations again in the backward pass instead of keeping them. Returns what undoes it.

    Each batch is one pass: blocks that fill a cache for a second pass would fill it again in the backward pass.
    """
    checkpointed = blocks(model)
    for block in checkpointed:
        block.forward = _recomputing(block.forward)
    allow_two_passes_again = forbid_two_passes(model)

    def restore() -> None:
        allow_two_passes_again()
        for block in checkpointed:
            del block.forward  # the instance's attribute; the method of the class is visible again

    return restore


def _recomputing(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` with activation checkpointing while gradients are recorded."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # No random state needs to be kept for the second pass: models are loaded with dropout off.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run


def keep_in_host_memory(model: nn.Module, device: str) -> None:
    """Move a model to host memory; from now on only `at_hand` brings it to the device, for the time of a block."""
    model.__dict__[COMPUTE_DEVICE] = device
    model.to("cpu")


@contextmanager
def at_hand(models: Sequence[nn.Module]) -> Iterator[None]:
    """Bring models that live in host memory to their device for the time of the block."""
    offloaded = [model for model in models if COMPUTE_DEVICE in model.__dict__]
    for model in offloaded:
        model.to(model.__dict__[COMPUTE_DEVICE])
    try:
        yield
    finally:
        for model in offloaded:
            model.to("cpu")
