"""The files of a published model: those of the run, or its weights in bfloat16, or its adapter alone.

Weights are read and written file by file, so that no more than one file of them is in memory.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.interop.publishing.leaks import without_local_paths
from rlhf_lab.models.model_files import ADAPTER, ADAPTER_WEIGHTS, INDEX, TOKENIZER_FILES

Dtype = Literal["saved", "bfloat16"]
LOCAL_KEYS = ("_name_or_path", "name_or_path", "is_local", "local_files_only")
"""Keys of config.json and tokenizer_config.json that say where this machine had the model."""
TOKENIZER_EXTRAS = ("special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja")


def write_model(model: Path, to: Path, dtype: Dtype) -> None:
    """Write a whole model: everything in its folder but the adapter that is merged in it.

    Args:
        to: a folder that is there.
        dtype: `saved` copies the weights; `bfloat16` rounds every floating-point tensor to it.
    """
    for path in sorted(model.rglob("*")):
        name = path.relative_to(model)
        if path.is_dir() or name.parts[0] == "adapter" or path.name.startswith("."):
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors" and dtype == "bfloat16":
            _round_weights(path, to / name)
        else:
            shutil.copyfile(path, to / name)
        if path.suffix == ".json":
            _make_portable(to / name, dtype)


def _round_weights(source: Path, target: Path) -> None:
    tensors = load_file(source)
    rounded = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    save_file(rounded, target, metadata={"format": "pt"})  # other metadata may name what only this machine has


def _make_portable(path: Path, dtype: Dtype) -> None:
    """Take out of a settings file what only this machine understands, and name the dtype that was exported."""
    values = read_json(path)
    if not isinstance(values, dict):
        return
    portable = {name: value for name, value in values.items() if name not in LOCAL_KEYS}
    if dtype == "bfloat16" and path.name == "config.json":
        portable["dtype"] = "bfloat16"
        portable.pop("torch_dtype", None)  # the name that older configs use
    if dtype == "bfloat16" and path.name == INDEX:
        files = sorted(set(portable["weight_map"].values()))
        portable.setdefault("metadata", {})["total_size"] = sum(_tensor_bytes(path.parent / file) for file in files)
    if portable != values:
        path.write_text(json.dumps(portable, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _tensor_bytes(path: Path) -> int:
    """Bytes of the tensors in a safetensors file: 8 bytes with the length of the header, the header, the tensors."""
    with path.open("rb") as handle:
        header = int.from_bytes(handle.read(8), "little")
    return path.stat().st_size - 8 - header


def write_adapter(model: Path, to: Path, base: str) -> None:
    """Write the adapter alone, with the tokenizer that it was trained with.

    Args:
        base: hub id of the base; empty takes the one that the adapter names.
    Raises:
        ConfigError: the base is a folder of this machine, which nobody else has.
    """
    adapter = model / "adapter"
    settings = read_json(adapter / ADAPTER)
    if not isinstance(settings, dict):
        raise DataError(f"{adapter / ADAPTER} is not readable; build the run again")
    named = base or str(settings.get("base_model_name_or_path") or "")
    if not named or Path(named).exists() or without_local_paths(named) != named:
        raise ConfigError(
            f"{adapter} belongs to a base in a folder of this machine, which others do not have; write "
            "base=OWNER/NAME, the hub id under which that base is published, or leave out adapter=true to publish the "
            "merged model"
        )
    shutil.copyfile(adapter / ADAPTER_WEIGHTS, to / ADAPTER_WEIGHTS)
    portable: dict[str, Any] = {**settings, "base_model_name_or_path": named}
    write_json(to / ADAPTER, portable)
    for name in (*TOKENIZER_FILES, *TOKENIZER_EXTRAS):
        if (model / name).is_file():
            shutil.copyfile(model / name, to / name)
            if name.endswith(".json"):
                _make_portable(to / name, "saved")
