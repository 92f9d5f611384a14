"""Whether a place can be loaded as a model, judged by its files alone: no weights are read and torch is not imported.

What loading does with it is in `models/build.py` and `models/lora.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.files import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "score."
"""Beginning of the names of a reward model's head among its tensors."""


def problems(source: str, where: str, *, reward: bool = False) -> list[str]:
    """What keeps a model from loading; empty when nothing does.

    Args:
        source: a folder or hub id.
        where: the setting that names it, for the messages.
        reward: whether it has to have a reward model's head; without one it would load with a new one and score 0.
    """
    path, here = Path(source), f"{where}={source}"
    if source.startswith("~") and path.expanduser().is_dir():
        return [f"{here}: ~ is not expanded here; write {where}={path.expanduser()}"]
    if path.is_file():
        return [f"{here} is a file; write the folder that holds config.json, *.safetensors and a tokenizer"]
    if not path.is_dir():
        return _hub_problems(source, here)
    if (path / "config.json").is_file():
        return _folder_problems(path, here, reward=reward)
    if (path / ADAPTER).is_file():
        return _adapter_problems(path, here, reward=reward)
    inside = sorted(p.parent.name for p in path.glob("*/config.json"))
    near = f"; did you mean {path / inside[0]}?" if inside else ""
    return [f"{here} is no model: it has neither config.json nor {ADAPTER}{near}"]


def has_head(source: str) -> bool:
    """Whether a local model's files have a reward model's head."""
    names = _tensor_names(Path(source), source, []) if (Path(source) / "config.json").is_file() else None
    return any(name.startswith(HEAD) for name in names or ())


def lacks_chat_template(source: str) -> bool:
    """Whether a local folder with a tokenizer has no chat template, neither in its settings nor beside them."""
    settings = read_json(Path(source) / "tokenizer_config.json")
    if not isinstance(settings, dict):
        return False  # a hub id, or no tokenizer: said elsewhere
    return "chat_template" not in settings and not any(Path(source).glob("chat_template*"))


def config_of(source: str) -> dict[str, Any]:
    """The config of a model's folder, of an adapter's base, or of a hub model that was downloaded before; else {}."""
    folder = Path(source)
    if folder.is_dir():
        base = (read_json(folder / ADAPTER) or {}).get("base_model_name_or_path")
        return read_json(folder / "config.json") or (config_of(base) if base else {})
    cached = _cached_config(source) if source.count("/") <= 1 and not source.startswith((".", "/", "~")) else None
    return (read_json(Path(cached)) or {}) if cached else {}


def positions(config: Mapping[str, Any]) -> int | None:
    """Longest row that a model can read, in tokens; None when its config does not say."""
    found = config.get("n_positions") or config.get("max_position_embeddings")
    return found if isinstance(found, int) else None


def rope_limit(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """(kind, positions) of a rotary embedding whose frequencies change once a sequence is longer than `positions`.

    NTK scaling ("dynamic") and LongRoPE compute them from the length of the sequence. Keys that a sampler has cached
    were turned by the frequencies of a shorter one, and a row depends on the longest row of its batch. None for
    embeddings that are the same at every length.
    """
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = [value for value in written.values() if isinstance(value, Mapping)]
    limits = []
    for rope in by_layer or [written]:
        kind, limit = str(rope.get("rope_type") or rope.get("type")), positions(config)
        if kind == "longrope":
            original = "original_max_position_embeddings"
            limit = config.get(original) or rope.get(original) or limit
        if limit and (kind == "longrope" or "dynamic" in kind):
            limits.append((kind, limit))
    return min(limits, key=lambda each: each[1], default=None)


def rope_problem(where: str, length: int, source: str, limit: tuple[str, int]) -> str:
    """Why rows of `length` tokens are refused where `rope_limit` is below it.

    Args:
        where: the setting that asks for the length, or what is that long.
    """
    kind, most = limit
    return (
        f"{where}={length} is beyond the {most} positions up to which {source} is one model: the frequencies of its "
        f"rotary embedding ({kind}) then depend on the length of the sequence, so that the sampler and training, and "
        f"batches of other lengths, would compute different probabilities; lower it to {most}, or give config.json a "
        "rope_type that is the same at every length, such as yarn or linear"
    )


def _folder_problems(folder: Path, here: str, *, reward: bool) -> list[str]:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        return [f"{here}: its config.json is not one of a Hugging Face model (no model_type); copy the folder again"]
    found: list[str] = []
    names = _tensor_names(folder, here, found)
    if names is not None and reward and not any(name.startswith(HEAD) for name in names):
        found.append(
            f"{here} is no reward model: it has no head (score.weight), and every reply would score 0; name a folder "
            "that AutoModelForSequenceClassification saved, or a recipe such as needs.reward=reward_model"
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        found.append(f"{here} has no tokenizer; save it there: tokenizer.save_pretrained({str(folder)!r})")
    return found


def _adapter_problems(folder: Path, here: str, *, reward: bool) -> list[str]:
    found = []
    if find_spec("peft") is None:
        found.append(str(MissingDependency(f"{here}, an adapter,", OPTIONAL["peft"][1])))
    names: set[str] = set()
    if (folder / ADAPTER_WEIGHTS).is_file():
        names = _names_in(folder / ADAPTER_WEIGHTS, here, found)
    else:
        found.append(f"{here} is an adapter without its weights, {ADAPTER_WEIGHTS}; save it again in safetensors")
    base = (read_json(folder / ADAPTER) or {}).get("base_model_name_or_path")
    if not base:
        return [
            *found,
            f"{here}: its {ADAPTER} names no base_model_name_or_path; write the base's folder or hub id there",
        ]
    with_head = any(f".{HEAD}" in f".{name}" for name in names)
    return found + problems(base, f"{here}: its base", reward=reward and not with_head)


def _tensor_names(folder: Path, here: str, found: list[str]) -> set[str] | None:
    """Names of the folder's tensors; None where they cannot be known, which is noted in `found`."""
    index = folder / INDEX
    if index.is_file():
        weight_map = (read_json(index) or {}).get("weight_map", {})
        lacking = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
        if lacking:
            found.append(f"{here} lacks {', '.join(lacking)}, which its {INDEX} names; copy them there")
            return None
        return set(weight_map)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        old = sorted(path.name for path in folder.glob("*.bin"))
        found.append(
            f"{here} has {old[0]} and no *.safetensors, and only those are loaded; convert it: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
            if old
            else f"{here} has no weights (*.safetensors); copy them there"
        )
        return None
    before = len(found)
    names = set().union(*(_names_in(file, here, found) for file in files))
    return names if len(found) == before else None


def _names_in(file: Path, here: str, found: list[str]) -> set[str]:
    """Names of the tensors in a file, from its header; a file that is not whole is noted in `found`."""
    try:
        with file.open("rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            header: dict[str, Any] = json.loads(handle.read(size)) if size < 2**28 else {}
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=None)
    except (ValueError, OSError, KeyError, TypeError, AttributeError):
        end = None
    if end is None:
        found.append(f"{here}: {file.name} is no safetensors file; if it is a git-lfs pointer, run: git lfs pull")
        return set()
    if file.stat().st_size < 8 + size + end:
        found.append(f"{here}: {file.name} ends before its last tensor; copy it again")
    return {name for name in header if name != "__metadata__"}


def _hub_problems(source: str, here: str) -> list[str]:
    """What can be said of a hub id without asking the hub."""
    if source.count("/") > 1 or source.startswith((".", "/")):
        return [f"{here}: there is no such folder, and a hub id is owner/name"]
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() not in ("1", "TRUE", "YES", "ON"):
        return []
    if _cached_config(source):
        return []
    return [
        f"{here}: there is no such folder, HF_HUB_OFFLINE is set, and the hub model is not in the cache; unset "
        "HF_HUB_OFFLINE to download it once, or write a folder"
    ]


def _cached_config(hub_id: str) -> str | None:
    """Path of a hub model's config in the cache of downloads."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub_id, "config.json")
    return path if isinstance(path, str) else None
