"""Whether a place can be loaded as a model, judged by its files alone: no weights are read and torch is not imported.

What loading does with it is in `models/build.py` and `models/lora.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, ArtifactError, MissingDependency
from rlhf_lab.core.files import parse_json, read_json, write_json
from rlhf_lab.models.settings import Stored

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "score."
"""Prefix of the names of a reward model's head among its tensors."""
TENSOR_PIECE_BYTES = 1024
"""Of each tensor, that `base_identity` reads."""
FILE_END_BYTES = 2**22
"""Bytes hashed at either end of a model's file; the middle of a larger file is not read."""
RECORD = "trained_on.json"
"""File beside those of an adapter that a stage has trained."""
MAX_HEADER = 100_000_000
"""Bytes, as the format allows. A safetensors file opens with the length of its header; in another kind of file that
number is anything."""


def problems(source: str, where: str, *, reward: bool = False) -> list[str]:
    """What keeps a model from loading; empty when nothing does.

    Args:
        source: a folder or hub id.
        where: the setting that names it, for the messages.
        reward: whether it has to have a reward model's head; without one it would load with a new one and score 0.
    """
    path = Path(source)
    label = f"{where}={source}"
    if source.startswith("~") and path.expanduser().is_dir():
        return [f"{label}: ~ is not expanded here; write {where}={path.expanduser()}"]
    if path.is_file():
        return [f"{label} is a file; write the folder that holds config.json, *.safetensors and a tokenizer"]
    if not path.is_dir():
        return _hub_problems(source, label)
    if (path / "config.json").is_file():
        return _folder_problems(path, label, reward=reward)
    if (path / ADAPTER).is_file():
        try:
            check_bases(source)
        except ArtifactError as error:
            return [f"{where}={error}"]
        return _adapter_problems(path, label, reward=reward)
    models_inside = sorted(config.parent.name for config in path.glob("*/config.json"))
    suggestion = f"; did you mean {path / models_inside[0]}?" if models_inside else ""
    return [f"{label} is no model: it has neither config.json nor {ADAPTER}{suggestion}"]


def has_head(source: str) -> bool:
    """Whether a local model's files have a reward model's head."""
    folder = Path(source)
    if not (folder / "config.json").is_file():
        return False
    names = _tensor_names(folder, source, [])
    return _contains_head(names or set())


def _contains_head(tensor_names: set[str]) -> bool:
    return any(name.startswith(HEAD) for name in tensor_names)


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
        check_bases(source)
        base = _base_of_adapter(folder)
        return read_json(folder / "config.json") or (config_of(base) if base else {})
    could_be_hub_id = source.count("/") <= 1 and not source.startswith((".", "/", "~"))
    cached = _cached_config(source) if could_be_hub_id else None
    return (read_json(Path(cached)) or {}) if cached else {}


def _base_of_adapter(folder: Path) -> str | None:
    """Folder or hub id of the model that an adapter was trained on; None where the folder's files do not say."""
    settings = read_json(folder / ADAPTER)
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    return base if isinstance(base, str) else None


def check_bases(source: str | Path) -> None:
    """Follow an adapter's folder to its base, and to the base of that. Raises ArtifactError where that is a circle."""
    here = str(source)
    passed = [here]
    while (Path(here) / ADAPTER).is_file() and not (Path(here) / "config.json").is_file():
        base = _base_of_adapter(Path(here))
        if not base:
            return
        refuse_circle(passed, base)
        passed.append(base)
        here = base


def refuse_circle(passed: Sequence[str], base: str) -> None:
    """Raises ArtifactError where an adapter lies on one of the models that lie on it.

    Args:
        passed: folders on the way to `base`, each an adapter on the next.
    """
    if Path(base).is_dir() and os.path.realpath(base) in map(os.path.realpath, passed):
        raise ArtifactError(
            f"{passed[0]}: its adapters lie on each other in a circle ({' → '.join([*passed, base])}); write the model "
            f"that the first of them was trained on as base_model_name_or_path in its {ADAPTER}"
        )


def positions(config: Mapping[str, Any]) -> int | None:
    """Longest row that a model can read, in tokens; None when its config does not say."""
    value = config.get("n_positions") or config.get("max_position_embeddings")
    return value if isinstance(value, int) else None


def rope_limit(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """(kind, positions) of a rotary embedding whose frequencies change once a sequence is longer than `positions`.

    NTK scaling ("dynamic") and LongRoPE compute them from the length of the sequence. Keys that a sampler has cached
    were turned by the frequencies of a shorter one, and a row depends on the longest row of its batch. None for
    embeddings that are the same at every length.
    """
    # `rope_scaling` and `type` are the names that older configs use.
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer_kind = [value for value in settings.values() if isinstance(value, Mapping)]
    limits = []
    for rope in by_layer_kind or [settings]:
        kind = str(rope.get("rope_type") or rope.get("type"))
        limit = positions(config)
        if kind == "longrope":  # `positions` is then the extended length; frequencies change at the original one
            original = "original_max_position_embeddings"
            limit = config.get(original) or rope.get(original) or limit
        if limit and (kind == "longrope" or "dynamic" in kind):
            limits.append((kind, limit))
    return min(limits, key=lambda kind_and_limit: kind_and_limit[1], default=None)


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


@dataclass(frozen=True)
class Record:
    """What an adapter was trained on.

    Attributes:
        identity: `base_identity` of the model.
        weights: how that model was stored meanwhile.
    """

    identity: str
    weights: Stored

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """That of an adapter's folder; None where there is none, as of adapters that others have made."""
        values = read_json(folder / RECORD)
        return cls(**values) if values else None

    def write(self, folder: Path) -> None:
        write_json(folder / RECORD, asdict(self))

    def why_apart(self, identity: str, held: Stored, wanted: Stored) -> str:
        """Why an adapter cannot lie on a model in memory, in words that follow on a comma; empty where it can.

        Args:
            identity: `base_identity` of the model in memory.
            held: how that is stored.
            wanted: how the role of the adapter is to be stored.
        """
        if not identity or self.identity != identity:
            return "since it was trained on another model than the policy starts from"
        if wanted != held:
            return f"since model.weights_of stores it as {wanted} and the policy's base as {held}"
        if self.weights == "nf4" and held != "nf4":
            return f"since it was trained on weights of four bits, and the policy's base is {held}"
        return ""


def adapter_folder(source: str | Path) -> Path:
    """Where the adapter of a model's folder is: in `adapter/` beside merged weights, else the folder itself."""
    folder = Path(source)
    beside_merged = folder / "adapter"
    return beside_merged if (beside_merged / ADAPTER).is_file() else folder


def _folder_problems(folder: Path, label: str, *, reward: bool) -> list[str]:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or "model_type" not in config:
        return [f"{label}: its config.json is not one of a Hugging Face model (no model_type); copy the folder again"]
    messages = code_problems(config, label)
    names = _tensor_names(folder, label, messages)
    if reward and names is not None and not _contains_head(names):
        messages.append(
            f"{label} is no reward model: it has no head (score.weight), and every reply would score 0; name a folder "
            "that AutoModelForSequenceClassification saved, or a recipe such as needs.reward=reward_model"
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        messages.append(f"{label} has no tokenizer; save it there: tokenizer.save_pretrained({str(folder)!r})")
    return messages


def code_problems(config: Mapping[str, Any], label: str) -> list[str]:
    """Why a model whose config names code of its own is refused; empty where transformers has the architecture."""
    if not config.get("auto_map"):
        return []
    # imported here, since few configs name code
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") in CONFIG_MAPPING_NAMES:
        return []  # loaded with the code of transformers
    return [
        f"{label} needs code of its own (auto_map in config.json, trust_remote_code elsewhere), which is never run "
        "here; use a model whose architecture transformers has, or a version of transformers that has this one"
    ]


def _adapter_problems(folder: Path, label: str, *, reward: bool) -> list[str]:
    messages: list[str] = []
    if find_spec("peft") is None:
        messages.append(str(MissingDependency(f"{label}, an adapter,", OPTIONAL["peft"][1])))
    names: set[str] = set()
    if (folder / ADAPTER_WEIGHTS).is_file():
        names = _tensor_names_in_file(folder / ADAPTER_WEIGHTS, label, messages)
    else:
        messages.append(f"{label} is an adapter without its weights, {ADAPTER_WEIGHTS}; save it again in safetensors")
    base = _base_of_adapter(folder)
    if not base:
        messages.append(
            f"{label}: its {ADAPTER} names no base_model_name_or_path; write the base's folder or hub id there"
        )
        return messages
    # peft puts a prefix in front of all names, so the head's stands anywhere in them.
    has_own_head = any(f".{HEAD}" in f".{name}" for name in names)
    base_problems = problems(base, f"{label}: its base", reward=reward and not has_own_head)
    return messages + base_problems


def _tensor_names(folder: Path, label: str, messages: list[str]) -> set[str] | None:
    """Names of the folder's tensors; None where they cannot be known, and why is appended to `messages`."""
    index = folder / INDEX
    if index.is_file():
        file_of_tensor = (read_json(index) or {}).get("weight_map", {})
        missing_files = sorted({file for file in file_of_tensor.values() if not (folder / file).is_file()})
        if missing_files:
            messages.append(f"{label} lacks {', '.join(missing_files)}, which its {INDEX} names; copy them there")
            return None
        return set(file_of_tensor)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled_files = sorted(path.name for path in folder.glob("*.bin"))
        if pickled_files:
            messages.append(
                f"{label} has {pickled_files[0]} and no *.safetensors, and only those are loaded; convert it: "
                "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
            )
        else:
            messages.append(f"{label} has no weights (*.safetensors); copy them there")
        return None
    messages_before = len(messages)
    names = set().union(*(_tensor_names_in_file(file, label, messages) for file in files))
    return names if len(messages) == messages_before else None


def _tensor_names_in_file(file: Path, label: str, messages: list[str]) -> set[str]:
    """Names of the tensors in a file, from its header; a file that is not whole is reported in `messages`."""
    try:
        _, tensors, data_start = read_header(file)
        data_bytes = max((entry["data_offsets"][1] for entry in tensors.values()), default=None)
    except (ArtifactError, OSError, LookupError, TypeError):
        data_bytes = None
    if not isinstance(data_bytes, int):
        messages.append(f"{label}: {file.name} is no safetensors file; if it is a git-lfs pointer, run: git lfs pull")
        return set()
    if file.stat().st_size < data_start + data_bytes:
        messages.append(f"{label}: {file.name} ends before its last tensor; copy it again")
    return set(tensors)


def read_header(file: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The metadata of a safetensors file, its tensors' entries by their names, and at which byte their data begins.

    The file is 8 bytes with the length of the header, the header in JSON, and the data.

    Raises:
        ArtifactError: the file has no such header.
    """
    with file.open("rb") as handle:
        header_bytes = int.from_bytes(handle.read(8), "little")
        try:
            header = parse_json(handle.read(header_bytes)) if header_bytes <= MAX_HEADER else None
        except ValueError as error:
            raise ArtifactError(f"{file} is no safetensors file ({error}); copy it again") from error
    if not isinstance(header, dict):
        raise ArtifactError(f"{file} is no safetensors file; copy it again")
    metadata = header.pop("__metadata__", None)
    return metadata if isinstance(metadata, dict) else {}, header, 8 + header_bytes


def _hub_problems(source: str, label: str) -> list[str]:
    """Problems of a hub id that show without asking the hub."""
    if source.count("/") > 1 or source.startswith((".", "/")):
        return [f"{label}: there is no such folder, and a hub id is owner/name"]
    offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
    if not offline or _cached_config(source):
        return []
    return [
        f"{label}: there is no such folder, HF_HUB_OFFLINE is set, and the hub model is not in the cache; unset "
        "HF_HUB_OFFLINE to download it once, or write a folder"
    ]


def _cached_config(hub_id: str) -> str | None:
    """Path of a hub model's config in the cache of downloads."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub_id, "config.json")
    return path if isinstance(path, str) else None


def model_identity(source: str) -> str:
    """A hash of a model folder's content (whole small files, ends of large ones); of the name for a hub id.

    With an adapter goes the identity of its base.
    """
    folder = Path(source)
    digest = sha256(b"" if folder.is_dir() else source.encode())
    base = _base_of_adapter(folder)
    if base and not (folder / "config.json").is_file():
        check_bases(source)
        digest.update(model_identity(base).encode())
    if folder.is_dir():
        # Of a large model only ends of files are read, and an adapter that was merged into it may leave those alone.
        inside = [*folder.glob("adapter/*"), *folder.glob("members/*/*")]  # members of an ensemble
        for path in sorted([*folder.glob("*"), *inside]):
            if path.is_file() and not path.name.startswith("."):
                _hash_file_ends(digest, path, str(path.relative_to(folder)))
    return digest.hexdigest()[:16]


def base_identity(source: str, commit: str | None = None) -> str:
    """What identifies the model in a folder, or that of a hub id at a commit; empty where that is not known.

    Of a folder only what is computed with counts: the config, and a piece of every tensor. Other files may come and go.
    """
    folder = Path(source)
    if not source or not folder.is_dir():  # a new model comes from nowhere
        return f"{source}@{commit}" if commit else ""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        return model_identity(source)
    digest = sha256((folder / "config.json").read_bytes())
    for path in weights:
        _hash_tensors(digest, path)
    return digest.hexdigest()[:16]


def pinned_identity(source: str) -> str:
    """`model_identity`; of a hub id with the commit of the snapshot in the cache of downloads, once it is there.

    A hub id alone names another model once its owner uploads one.
    """
    commit = cached_commit(source)
    if commit is None:
        return model_identity(source)
    return sha256(f"{model_identity(source)} {commit}".encode()).hexdigest()[:16]


def cached_commit(source: str) -> str | None:
    """The commit of a hub model's snapshot in the cache of downloads; None of a folder, or where it is not there."""
    config = None if Path(source).is_dir() else _cached_config(source)
    return Path(config).parent.name if config else None  # …/snapshots/COMMIT/config.json


def _hash_tensors(digest: Any, path: Path) -> None:
    """Add names, shapes and the first numbers of all tensors of a safetensors file to a digest."""
    _, tensors, data_start = read_header(path)
    with path.open("rb") as handle:
        handle.seek(8)
        digest.update(handle.read(data_start - 8))
        for name, entry in sorted(tensors.items()):
            try:
                begin, end = entry["data_offsets"]
                handle.seek(data_start + begin)
                digest.update(handle.read(max(min(end - begin, TENSOR_PIECE_BYTES), 0)))
            except (LookupError, TypeError, ValueError) as error:
                raise ArtifactError(
                    f"{path}: tensor {name} has no data_offsets [begin, end]; copy the file again"
                ) from error


def _hash_file_ends(digest: Any, path: Path, name: str) -> None:
    """Add a file's name, size, first and last `FILE_END_BYTES` to a digest: all of a small file."""
    size = path.stat().st_size
    digest.update(f"{name}:{size}".encode())
    with path.open("rb") as handle:
        digest.update(handle.read(FILE_END_BYTES))
        handle.seek(max(FILE_END_BYTES, size - FILE_END_BYTES))
        digest.update(handle.read())
