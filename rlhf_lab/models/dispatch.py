"""Loading of frozen models that fit on no single device: `model.dispatch`, with accelerate.

The module tree is created without values (`init_empty_weights`), and its tensors are read from the files directly to
their places (`load_checkpoint_and_dispatch`). Blocks in host memory or on disk are moved to the device, one layer at a
time, by hooks in the forward pass. The parts outside the blocks stay on the device, because log-probabilities and
scores read the head outside of any module's forward pass.

The numbers are those of the same model on one device: every layer computes on a device of the same kind with the same
weights.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import nn
from transformers import AutoConfig

from rlhf_lab.core.errors import ArtifactError, ConfigError, import_optional
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.models import model_files
from rlhf_lab.models.block_placement import BlockPlacement, place_blocks
from rlhf_lab.models.settings import Dispatch, Stored
from rlhf_lab.models.sharded import READ_OFFLOADED, blocks, normalise_in_float32
from rlhf_lab.models.weights import compute_under_autocast, experts, store_matrices

PLACEMENT = "_rlhf_lab_placement"
"""Key of the placement in a model's `__dict__`, see `sharded.ROOT`."""


def load_dispatched(
    auto_class: Any,
    source: str,
    limits: Dispatch,
    device: str,
    weights: Stored,
    *,
    revision: str | None = None,
    attention: str | None = None,
    **options: Any,
) -> nn.Module:
    """Load a frozen model with its blocks spread over GPUs, host memory and disk.

    Blocks on disk are written to a temporary directory (TMPDIR), which is removed with the model.

    Raises ArtifactError if the tensors in the files do not have the names of the model's, and ConfigError for experts
    or if the parts outside the blocks exceed the limit of the device.

    Args:
        source: directory or hub id of a full model, not of an adapter.
        weights: storage, `float32` or `bfloat16`. Below float32, blocks on disk keep the dtype of the files.
        attention: implementation of the attention; None lets the architecture choose.
    """
    accelerate = import_optional("accelerate")
    directory = _directory(source, revision)
    config = AutoConfig.from_pretrained(directory, trust_remote_code=False, **options)
    with accelerate.init_empty_weights():
        model = auto_class.from_config(config, dtype=torch.float32, attn_implementation=attention)
    model.tie_weights()
    _check_names(model, directory, source)
    model.eval().requires_grad_(False)
    # accelerate's hooks wrap the forward passes that exist when it attaches them
    compute_under_autocast(model)
    store_matrices(model, weights)
    if weights != "float32":
        for block in blocks(model):
            normalise_in_float32(block)  # norms on disk keep the dtype of the files
    placement = _placement(model, limits, device)
    folder = tempfile.mkdtemp(prefix="dispatch-", dir=scratch_dir())
    with _quiet(), model_files.reading_weights(directory):
        model = accelerate.load_checkpoint_and_dispatch(
            model,
            str(directory),
            device_map=_device_map(model, placement),
            offload_folder=folder,
            dtype=torch.float32 if weights == "float32" else None,  # None keeps the dtypes of `store_matrices`
            offload_state_dict=False,
            force_hooks=True,
        )
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    model.__dict__[PLACEMENT] = placement
    model.__dict__[READ_OFFLOADED] = partial(_read_offloaded, model)
    return model


def _read_offloaded(model: nn.Module, name: str) -> torch.Tensor:
    """Return a tensor that is in host memory or on disk outside of passes, by its name in the state dict."""
    module_name, _, tensor_name = name.rpartition(".")
    hook: Any = model.get_submodule(module_name)._hf_hook
    value: torch.Tensor = hook.weights_map[tensor_name]
    return value


def placement_of(model: nn.Module) -> BlockPlacement | None:
    """Return where a model's blocks are; None for a model that is in one place."""
    found: BlockPlacement | None = model.__dict__.get(PLACEMENT)
    return found


def _directory(source: str, revision: str | None) -> Path:
    """Return the directory of a model's files; those of a hub model are downloaded unless they are cached."""
    if Path(source).is_dir():
        return Path(source)
    return Path(snapshot_download(source, revision=revision, allow_patterns=["*.safetensors", "*.json"]))


def _check_names(model: nn.Module, directory: Path, source: str) -> None:
    """Raise ArtifactError if a tensor of the model is not in the files: accelerate would leave it without values."""
    stored = model_files.tensor_names(directory, source)
    tied = getattr(model, "all_tied_weights_keys", {})
    missing = sorted(set(model.state_dict()) - stored - set(tied))
    if not missing:
        return
    if experts(model):
        raise ConfigError(
            f"{source}: model.dispatch cannot read {type(model).__name__}, because the files store each expert "
            "separately and the model has them in one tensor; use a model without experts, or no limits"
        )
    raise ArtifactError(
        f"{source}: its files have no tensor {missing[0]} ({len(missing)} of the model's names are missing), and "
        "model.dispatch reads tensors by their names in transformers; load the model once and save it again "
        "(from_pretrained, then save_pretrained), or use no limits"
    )


def _placement(model: nn.Module, limits: Dispatch, device: str) -> BlockPlacement:
    block_bytes = [_parameter_bytes(block) for block in blocks(model)]
    root_bytes = _parameter_bytes(model) - sum(block_bytes)
    place = torch.device(device)
    is_cuda = place.type == "cuda"
    first_gpu = 0
    if is_cuda:  # "cuda" without an index means the current device
        first_gpu = torch.cuda.current_device() if place.index is None else place.index
    return place_blocks(root_bytes, block_bytes, limits, cuda=is_cuda, first_gpu=first_gpu)


def _parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _device_map(model: nn.Module, placement: BlockPlacement) -> dict[str, int | str]:
    """Return accelerate's map from modules to places: each block by name, and every other module on the first device.

    accelerate takes a module's longest prefix in the map, and needs an entry for each parameter.
    """
    place_of_block = dict(zip(blocks(model), placement.places, strict=True))
    places: dict[str, int | str] = {}
    inside = ""  # prefix of the latest block: named_modules lists the modules of a block directly after it
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        if module in place_of_block:
            places[name] = place_of_block[module]
            inside = f"{name}."
        elif name and next(module.children(), None) is None:
            places[name] = placement.first
    return places


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide accelerate's progress bar and its warning that some parameters have no values outside of passes."""
    logger = getLogger("accelerate.big_modeling")
    level = logger.level
    logger.setLevel(ERROR)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
