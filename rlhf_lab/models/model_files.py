"""Checks of model files: find out from the files alone why a model cannot be loaded.

No weights are read, and torch is not imported. `models/build.py` and `models/lora.py` load the models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rlhf_lab.core import hub
from rlhf_lab.core.bounded_files import MIB, check_regular, read_bounded
from rlhf_lab.core.errors import OPTIONAL, ArtifactError, DataError, LabError, MissingDependency
from rlhf_lab.core.files import parse_json, read_json, read_object, write_json
from rlhf_lab.data.generated import generated_identity
from rlhf_lab.models.settings import Stored

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "score."
"""Prefix of the names of the tensors of a reward model's head."""
TENSOR_PIECE_BYTES = 1024
"""Number of bytes of each tensor that `base_identity` reads, and `model_identity` in a large file."""
FILE_END_BYTES = 2**22
"""Number of bytes hashed at the start and the end of a model's file. Between them only pieces of tensors are read."""
RECORD = "trained_on.json"
"""File next to those of an adapter that rlhf_lab has trained. It records the base model; see `Record`."""
MAX_TOKENIZER_BYTES = 64 * MIB  # in bytes
MAX_BASE_LENGTH = 4096
"""Maximum number of characters of the path or hub id that an adapter names as its base."""


def problems(source: str, where: str, *, reward: bool = False) -> list[str]:
    """Return the reasons why a model cannot be loaded; empty if there are none.

    Args:
        where: setting that names it, for the messages.
        reward: True if it must have a reward model's head. Without one, a new head would be created and score 0.
    """
    path = Path(source)
    label = f"{where}={source}"
    if source.startswith("~") and path.expanduser().is_dir():
        return [f"{label}: ~ is not expanded here; set {where}={path.expanduser()}"]
    if path.is_file():
        return [f"{label} is a file; set it to the directory with config.json, *.safetensors and a tokenizer"]
    if not path.is_dir():
        return _hub_problems(source, label)
    if (path / "config.json").is_file():
        return _dir_problems(path, label, reward=reward)
    if (path / ADAPTER).is_file():
        try:
            check_bases(source)
        except ArtifactError as error:
            return [f"{where}={error}"]
        return _adapter_problems(path, label, reward=reward)
    # a run directory contains its models in subdirectories
    models_inside = sorted(config.parent.name for config in path.glob("*/config.json"))
    suggestion = f"; did you mean {path / models_inside[0]}?" if models_inside else ""
    return [f"{label} is not a model: it has neither config.json nor {ADAPTER}{suggestion}"]


@contextmanager
def reading_weights(source: str | Path) -> Iterator[None]:
    """Turn errors of damaged or unsuitable model files into an ArtifactError that names them."""
    try:
        yield
    except LabError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        # a device without memory says nothing about the files, and the caller may try a smaller batch
        if type(error).__name__ == "OutOfMemoryError":
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0][:300]  # libraries append long hints
        raise ArtifactError(
            f"{source}: the files of this model are damaged or do not belong together ({reason}); copy the directory "
            "again, or train the model again"
        ) from error


def has_head(source: str) -> bool:
    """Return True if the files of a local model contain a reward model's head."""
    directory = Path(source)
    if not (directory / "config.json").is_file():
        return False
    names = _tensor_names(directory, source, [])
    return _contains_head(names or set())


def _contains_head(tensor_names: set[str]) -> bool:
    return any(name.startswith(HEAD) for name in tensor_names)


def lacks_chat_template(source: str) -> bool:
    """Return True if a local directory has a tokenizer without a chat template, in its settings or in a file."""
    settings = read_json(Path(source) / "tokenizer_config.json")
    if not isinstance(settings, dict):
        return False  # a hub id, or no tokenizer, which other checks report
    return "chat_template" not in settings and not any(Path(source).glob("chat_template*"))


def config_of(source: str) -> dict[str, Any]:
    """Return the config of a model directory, of an adapter's base, or of a cached hub model; otherwise {}."""
    directory = Path(source)
    if directory.is_dir():
        check_bases(source)
        base = _base_of_adapter(directory)
        return read_object(directory / "config.json") or (config_of(base) if base else {})
    # only a possible id is looked up: the hub's client raises an error for any other text
    could_be_hub_id = source.count("/") <= 1 and not source.startswith((".", "/", "~"))
    cached = _cached_config(source) if could_be_hub_id else None
    return read_object(Path(cached)) if cached else {}


def _base_of_adapter(directory: Path) -> str | None:
    """Return the directory or hub id of an adapter's base; None if the adapter's files do not name one."""
    base = read_object(directory / ADAPTER).get("base_model_name_or_path")
    # the operating system would raise an error when it looks up a text that cannot be a path
    is_path = isinstance(base, str) and len(base) <= MAX_BASE_LENGTH and "\0" not in base
    return base if is_path else None


def check_bases(source: str | Path) -> None:
    """Follow an adapter to its base, and on from a base that is an adapter too. Raises ArtifactError for a circle."""
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
    """Raise ArtifactError if an adapter's base is one of the models that are built on that adapter.

    Args:
        passed: directories on the way to `base`; each is an adapter on the next.
    """
    # real paths, because links may give one directory several names
    if Path(base).is_dir() and os.path.realpath(base) in map(os.path.realpath, passed):
        raise ArtifactError(
            f"{passed[0]}: its adapters form a circle ({' → '.join([*passed, base])}); in the first one's {ADAPTER}, "
            "set base_model_name_or_path to the model that it was trained on"
        )


def positions(config: Mapping[str, Any]) -> int | None:
    """Return the maximum number of tokens of a row that a model can read; None if its config does not say."""
    value = config.get("n_positions") or config.get("max_position_embeddings")
    return value if isinstance(value, int) else None


def rope_limit(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return (kind, positions) of a rotary embedding whose frequencies change for sequences beyond `positions`.

    NTK scaling ("dynamic") and LongRoPE compute the frequencies from the length of the sequence. Keys that a sampler
    has cached were rotated with the frequencies of a shorter sequence, and a row depends on the longest row of its
    batch. Returns None for embeddings that are the same at every length.
    """
    # older configs use the names `rope_scaling` and `type`
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, Mapping):
        return None  # transformers reports the error when it loads the model
    by_layer_kind = [value for value in settings.values() if isinstance(value, Mapping)]
    limits = []
    for rope in by_layer_kind or [settings]:
        kind = str(rope.get("rope_type") or rope.get("type"))
        limit = positions(config)
        if kind == "longrope":  # `positions` is the extended length, but frequencies change at the original one
            original = "original_max_position_embeddings"
            limit = config.get(original) or rope.get(original) or limit
        if limit and (kind == "longrope" or "dynamic" in kind):
            limits.append((kind, limit))
    return min(limits, key=lambda kind_and_limit: kind_and_limit[1], default=None)


def rope_problem(where: str, length: int, source: str, limit: tuple[str, int]) -> str:
    """Return the message that rejects rows of `length` tokens, which exceed `rope_limit`.

    Args:
        where: setting that requires the length, or name of the row with this length.
    """
    kind, largest = limit
    return (
        f"{where}={length} exceeds {largest}, the length beyond which the frequencies of the rotary embedding ({kind}) "
        f"of {source} depend on the length of the sequence, so that the sampler, training and batches of other lengths "
        f"would compute different probabilities; lower it to {largest}, or set a rope_type in config.json that is the "
        "same at every length, such as yarn or linear"
    )


@dataclass(frozen=True)
class Record:
    """The base model that an adapter was trained on.

    Attributes:
        identity: `base_identity` of the model.
        weights: storage of that model's weights during training.
    """

    identity: str
    weights: Stored

    @classmethod
    def read(cls, directory: Path) -> Record | None:
        """Read the record in an adapter's directory; None if it has none, as for adapters from other programs."""
        values = read_json(directory / RECORD)
        return cls(**values) if values else None

    def write(self, directory: Path) -> None:
        write_json(directory / RECORD, asdict(self))

    def why_separate(self, identity: str, stored: Stored, expected: Stored) -> str:
        """Return why an adapter cannot use a base in memory, as a subordinate clause; empty if it can.

        Args:
            identity: `base_identity` of the model in memory.
            stored: storage of that model's weights.
            expected: storage required for the role of the adapter.
        """
        if not identity or self.identity != identity:
            return "since it was trained on a model other than the one the policy starts from"
        if expected != stored:
            return f"since model.weights_of stores it as {expected} and the policy's base as {stored}"
        if self.weights == "nf4" and stored != "nf4":
            return f"since it was trained on 4-bit weights, and the policy's base is {stored}"
        return ""


def adapter_dir(source: str | Path) -> Path:
    """Return the directory of a model's adapter: `adapter/` next to merged weights, otherwise the directory itself."""
    directory = Path(source)
    next_to_merged = directory / "adapter"
    return next_to_merged if (next_to_merged / ADAPTER).is_file() else directory


def _dir_problems(directory: Path, label: str, *, reward: bool) -> list[str]:
    config = read_object(directory / "config.json")
    if not isinstance(config.get("model_type"), str):
        return [f"{label}: its config.json is no Hugging Face config (no model_type); copy the directory again"]
    messages = code_problems(config, label)
    names = _tensor_names(directory, label, messages)
    if reward and names is not None and not _contains_head(names):
        messages.append(
            f"{label} is not a reward model: it has no head (score.weight), and every response would score 0; use a "
            "directory that AutoModelForSequenceClassification saved, or a recipe such as needs.reward=reward_model"
        )
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        messages.append(f"{label} has no tokenizer; save it there: tokenizer.save_pretrained({str(directory)!r})")
    return messages + _json_problems(directory, label)


def _json_problems(directory: Path, label: str) -> list[str]:
    """Return messages about JSON files of a model or tokenizer that are no JSON object, too large or too deep."""
    messages = []
    for name in JSON_FILES:
        file = directory / name
        if not file.exists():
            continue
        try:
            value = parse_json(read_bounded(file, MAX_TOKENIZER_BYTES).decode("utf-8"))
        except (OSError, ValueError) as error:
            messages.append(f"{label}: {name} cannot be read ({str(error)[:200]}); copy the directory again")
            continue
        if not isinstance(value, dict):
            messages.append(f"{label}: {name} contains no JSON object; copy the directory again")
    return messages


def code_problems(config: Mapping[str, Any], label: str) -> list[str]:
    """Return why a model with its own code is rejected; empty if transformers has its architecture."""
    if not config.get("auto_map"):
        return []
    # imported here because few configs name code
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if config.get("model_type") in CONFIG_MAPPING_NAMES:
        return []  # loaded with the code of transformers
    return [
        f"{label} needs its own code (auto_map in config.json, trust_remote_code elsewhere), which rlhf_lab never "
        "runs; use a model whose architecture transformers has, or a version of transformers that has this one"
    ]


def _adapter_problems(directory: Path, label: str, *, reward: bool) -> list[str]:
    messages: list[str] = []
    if find_spec("peft") is None:
        messages.append(str(MissingDependency(f"{label}, an adapter,", OPTIONAL["peft"][1])))
    names: set[str] = set()
    if (directory / ADAPTER_WEIGHTS).is_file():
        names = _tensor_names_in_file(directory / ADAPTER_WEIGHTS, label, messages)
    else:
        messages.append(f"{label} is an adapter without its weights ({ADAPTER_WEIGHTS}); save it again in safetensors")
    base = _base_of_adapter(directory)
    if not base:
        messages.append(
            f"{label}: its {ADAPTER} has no base_model_name_or_path; set it to the base's directory or hub id"
        )
        return messages
    # peft adds a prefix to all names, so the name of the head may be anywhere within them
    has_own_head = any(f".{HEAD}" in f".{name}" for name in names)
    return messages + problems(base, f"{label}: its base", reward=reward and not has_own_head)


def _tensor_names(directory: Path, label: str, messages: list[str]) -> set[str] | None:
    """Return the names of a directory's tensors; None if they are unknown, with the reason added to `messages`."""
    index = directory / INDEX
    if index.is_file():
        file_of_tensor: Any = read_object(index).get("weight_map")
        if not isinstance(file_of_tensor, dict) or not all(isinstance(file, str) for file in file_of_tensor.values()):
            messages.append(f"{label}: its {INDEX} has no weight_map from tensors to files; copy the directory again")
            return None
        missing = sorted(file for file in set(file_of_tensor.values()) if not (directory / file).is_file())
        if missing:
            messages.append(f"{label} lacks {', '.join(missing)}, which its {INDEX} lists; copy them there")
            return None
        return set(file_of_tensor)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickled_files = sorted(path.name for path in directory.glob("*.bin"))
        if pickled_files:
            messages.append(
                f"{label} has {pickled_files[0]} but no *.safetensors, the only format that is loaded; convert it: "
                "AutoModelForCausalLM.from_pretrained(directory).save_pretrained(directory)"
            )
        else:
            messages.append(f"{label} has no weights (*.safetensors); copy them there")
        return None
    messages_before = len(messages)
    names = {name for file in files for name in _tensor_names_in_file(file, label, messages)}
    return names if len(messages) == messages_before else None


def _tensor_names_in_file(file: Path, label: str, messages: list[str]) -> set[str]:
    """Return the names of the tensors in a file from its header; a damaged file is reported in `messages`."""
    try:
        _, tensors, _ = read_header(file)
    except (DataError, OSError) as error:
        messages.append(f"{label}: {error}; if it is a git-lfs pointer, run: git lfs pull")
        return set()
    return set(tensors)


def read_header(file: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return a safetensors file's metadata, its entries by tensor name, and the byte at which its data starts.

    The file consists of 8 bytes with the length of the header, the header in JSON, and the data.

    Raises:
        DataError: the file has another format, its header is not valid, or the file does not have all the data.
    """
    check_regular(file)
    try:
        with safe_open(file, framework="np"):  # checks all of this without reading the data
            pass
    except SafetensorError as error:
        raise DataError(f"{file} is not a complete safetensors file ({error}); copy it again") from error
    with file.open("rb") as handle:
        header_bytes = int.from_bytes(handle.read(8), "little")
        header = parse_json(handle.read(header_bytes))
    metadata = header.pop("__metadata__", None) or {}
    return metadata, header, 8 + header_bytes


def _hub_problems(source: str, label: str) -> list[str]:
    """Return the problems of a hub id: a wrong form, or an uncached model that cannot be downloaded."""
    if source.count("/") > 1 or source.startswith((".", "/")):
        return [f"{label}: there is no such directory, and a hub id has the form owner/name"]
    if _cached_config(source):
        return []
    problem = hub.problem("models", source)
    return [f"{label}: {problem}"] if problem else []


def _cached_config(hub_id: str) -> str | None:
    """Return the path of a hub model's config in the download cache; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub_id, "config.json")
    return path if isinstance(path, str) else None


def model_identity(source: str) -> str:
    """Return a hash of a model directory's content, or of the name of a hub id.

    Small files are hashed in full. Of large ones both ends are hashed, and a piece of every tensor. The identity of an
    adapter includes that of its base.
    """
    directory = Path(source)
    digest = sha256(b"" if directory.is_dir() else source.encode())
    base = _base_of_adapter(directory)
    if base and not (directory / "config.json").is_file():
        check_bases(source)
        digest.update(model_identity(base).encode())
    if directory.is_dir():
        # merging an adapter with small products may not change the pieces of large files that are read
        inside = [*directory.glob("adapter/*"), *directory.glob("members/*/*")]  # members of an ensemble
        for path in sorted([*directory.glob("*"), *inside]):
            if path.is_file() and not path.name.startswith("."):
                _hash_file(digest, path, str(path.relative_to(directory)))
    return digest.hexdigest()[:16]


def input_identity(source: str) -> str:
    """Return the identity of what an entry of `needs` names: the rows of a generated corpus, or else a model."""
    return generated_identity(Path(source)) or model_identity(source)


def base_identity(source: str, commit: str | None = None) -> str:
    """Return an identifier of the model in a directory, or of a hub id at a commit; empty if it is unknown.

    In a directory only the files used in computation count: the config, and a piece of every tensor. Other files may
    be added or removed.
    """
    directory = Path(source)
    if not source or not directory.is_dir():  # an empty source is a new model, which has no identity
        return f"{source}@{commit}" if commit else ""
    weights = sorted(directory.glob("*.safetensors"))
    if not weights or not (directory / "config.json").is_file():
        return model_identity(source)
    digest = sha256((directory / "config.json").read_bytes())
    for path in weights:
        _hash_tensors(digest, path)
    return digest.hexdigest()[:16]


def pinned_identity(source: str) -> str:
    """Return `model_identity`, combined with the commit of a cached hub model's snapshot.

    A hub id alone refers to another model as soon as its owner uploads one.
    """
    commit, identity = cached_commit(source), model_identity(source)
    return identity if commit is None else sha256(f"{identity} {commit}".encode()).hexdigest()[:16]


def cached_commit(source: str) -> str | None:
    """Return the commit of a hub model's snapshot in the download cache; None for a directory or an uncached model."""
    config = None if Path(source).is_dir() else _cached_config(source)
    return Path(config).parent.name if config else None  # …/snapshots/COMMIT/config.json


def _hash_tensors(digest: Any, path: Path) -> None:
    """Add the names, shapes and first numbers of all tensors of a safetensors file to a digest."""
    _, tensors, data_start = read_header(path)
    with path.open("rb") as handle:
        handle.seek(8)  # after the length of the header
        digest.update(handle.read(data_start - 8))
        for _, entry in sorted(tensors.items()):
            start, end = entry["data_offsets"]
            handle.seek(data_start + start)
            digest.update(handle.read(min(end - start, TENSOR_PIECE_BYTES)))


def _hash_file(digest: Any, path: Path, name: str) -> None:
    """Add a file's name, size, and its first and last `FILE_END_BYTES` to a digest; a small file is read in full.

    Of a larger file of weights, a piece of every tensor is added: weights may differ in the middle only.
    """
    size = path.stat().st_size
    digest.update(f"{name}:{size}".encode())
    with path.open("rb") as handle:
        digest.update(handle.read(FILE_END_BYTES))
        handle.seek(max(FILE_END_BYTES, size - FILE_END_BYTES))
        digest.update(handle.read())
    if size > 2 * FILE_END_BYTES and path.suffix == ".safetensors":
        with suppress(DataError):  # `problems` describes a damaged file
            _hash_tensors(digest, path)
