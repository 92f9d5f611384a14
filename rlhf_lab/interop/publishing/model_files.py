"""Files of a published model: a copy of the run's files, its weights rounded to bfloat16, or only its adapter.

Weights are read and written one file at a time, so that at most one weight file is in memory.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json, read_object, write_json
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.interop.publishing.provenance import Dtype
from rlhf_lab.models.model_files import ADAPTER, ADAPTER_WEIGHTS, INDEX, TOKENIZER_FILES

LOCAL_KEYS = ("_name_or_path", "name_or_path", "is_local", "local_files_only")
"""Keys of config.json and tokenizer_config.json that contain the model's location on this machine."""
TOKENIZER_EXTRAS = ("special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja")


def is_reward_model(directory: Path) -> bool:
    architectures = read_object(directory / "config.json").get("architectures") or []
    return any(name.endswith("ForSequenceClassification") for name in architectures)


def write_model(model: Path, to: Path, dtype: Dtype) -> None:
    """Write a full model: everything in its directory except the adapter, which is already merged into the weights.

    Args:
        model: directory of the model.
        to: an existing directory.
        dtype: `saved` copies the weights; `bfloat16` rounds every floating-point tensor.
    """
    for path in sorted(model.rglob("*")):
        name = path.relative_to(model)
        target = to / name
        is_hidden = path.name.startswith(".")
        if path.is_dir() or is_hidden or name.parts[0] == "adapter":
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors" and dtype == "bfloat16":
            _round_weights(path, target)
        else:
            shutil.copyfile(path, target)
        if path.suffix == ".json":
            _make_portable(target, dtype)


def _round_weights(source: Path, target: Path) -> None:
    tensors = load_file(source)
    rounded = {}
    for name, tensor in tensors.items():
        rounded[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
    save_file(rounded, target, metadata={"format": "pt"})  # other metadata could contain paths of this machine


def _make_portable(path: Path, dtype: Dtype) -> None:
    """Remove the values of a settings file that depend on this machine, and write the exported dtype."""
    values = read_json(path)
    if not isinstance(values, dict):
        return
    portable = {name: value for name, value in values.items() if name not in LOCAL_KEYS}
    if dtype == "bfloat16" and path.name == "config.json":
        portable["dtype"] = "bfloat16"
        portable.pop("torch_dtype", None)  # the name that older configs use
    # The index states the total size of the tensors, which rounding has changed.
    if dtype == "bfloat16" and path.name == INDEX:
        files = sorted(set(portable["weight_map"].values()))
        total_bytes = sum(_tensor_bytes(path.parent / file) for file in files)
        portable.setdefault("metadata", {})["total_size"] = total_bytes
    if portable != values:  # an unchanged file stays byte for byte as it was saved
        text = json.dumps(portable, indent=2, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")


def _tensor_bytes(path: Path) -> int:
    """Return the bytes of tensors in a safetensors file, which has 8 bytes for the header's length, header, tensors."""
    with path.open("rb") as handle:
        header = int.from_bytes(handle.read(8), "little")
    return path.stat().st_size - 8 - header


def write_adapter(model: Path, to: Path, base: str) -> None:
    """Write only the adapter, with the tokenizer that it was trained with.

    Args:
        model: directory of the model.
        to: an existing directory.
        base: hub id of the base; empty means the base that the adapter names.
    Raises:
        ConfigError: the base is a directory of this machine, which nobody else has.
    """
    adapter = model / "adapter"
    settings = read_json(adapter / ADAPTER)
    if not isinstance(settings, dict):
        raise DataError(f"{adapter / ADAPTER} is not readable; rebuild the run")
    named = base or str(settings.get("base_model_name_or_path") or "")
    # A relative path may name a directory that exists here, although it looks like a hub id.
    is_local = Path(named).exists() or without_local_paths(named) != named
    if not named or is_local:
        raise ConfigError(
            f"the base of {adapter} is a directory of this machine, which others do not have. Set base=OWNER/NAME to "
            "the hub id of that base, or leave out adapter=true to publish the merged model"
        )
    shutil.copyfile(adapter / ADAPTER_WEIGHTS, to / ADAPTER_WEIGHTS)
    # The adapter's settings name the base by its location, so the published copy gets the hub id.
    portable: dict[str, Any] = {**settings, "base_model_name_or_path": named}
    write_json(to / ADAPTER, portable)
    for name in (*TOKENIZER_FILES, *TOKENIZER_EXTRAS):
        if (model / name).is_file():
            shutil.copyfile(model / name, to / name)
            if name.endswith(".json"):
                _make_portable(to / name, "saved")
