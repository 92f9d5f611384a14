"""LoRA (arXiv:2106.09685): a linear layer's weight W stays as it is, and a product of two thin matrices is trained.

y = x·(W + s·B·A)ᵀ with A of (rank, in), B of (out, rank), s = alpha/rank, or alpha/√rank (arXiv:2312.03732). B starts
at zero, so a policy starts as its base.

The adapter lives inside the model: its class, config, backbone and head are those of the base. Three views of such a
model are plain Hugging Face models again: `without_adapter`, the base by sharing its tensors; `merged`, with W + s·B·A
in place; and what `save_adapter` writes, which any other program that knows peft can load.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.core.errors import OPTIONAL, ArtifactError, ConfigError, MissingDependency
from rlhf_lab.models.settings import LoRA

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every tensor name in an adapter file, by peft's convention
NAME = "default"
HEAD = "score"  # of a reward model: new, hence trained whole and stored with the adapter


def trainable(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """`model` ready to train: all of it at rank 0, else an adapter on a frozen base, and a reward model's head.

    The seed alone decides A; global random state is neither read nor moved.
    """
    return add_adapter(model, settings, seed) if settings.rank else model


def add_adapter(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """Put an adapter into `model`, in place, and freeze the rest but a reward model's head."""
    peft, causal = _peft(), _any(model)
    targets, transposed = _targets(model, settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rslora,
        target_modules=targets,
        fan_in_fan_out=transposed,
        task_type="SEQ_CLS" if hasattr(model, HEAD) else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        causal.add_adapter(config, NAME)
    generator = torch.Generator().manual_seed(seed)
    for layer in _layers(model):
        down = layer.lora_A[NAME].weight
        start = nn.init.kaiming_uniform_(torch.empty(down.shape), a=math.sqrt(5), generator=generator)
        down.data.copy_(start)
    if hasattr(model, HEAD):
        causal.score.requires_grad_(True)
    return model.train(model.training)


def has_adapter(model: nn.Module) -> bool:
    return bool(_layers(model))


def effective_weight(layer: nn.Module) -> Tensor:
    """The weight a linear layer computes with, in the layout of its own: W, or W + s·B·A where there is an adapter.

    `layer.weight` of an adapted layer is W alone.
    """
    weight = _any(layer).weight
    return weight + _any(layer).get_delta_weight(NAME).to(weight.dtype) if _is_adapted(layer) else weight


def without_adapter(model: nn.Module) -> nn.Module:
    """The base of a model with an adapter as a model of its own, frozen; it shares every tensor and costs no memory.

    The reference of DPO and of a KL penalty. After LoRA-SFT it is the SFT policy, since that was saved merged.
    """
    return _plain(model, lambda layer: layer.get_base_layer()).requires_grad_(False)


def merged(model: nn.Module) -> nn.Module:
    """A plain model that computes the same (to rounding): adapted weights are new, all else is shared.

    A model without an adapter is returned as it is.
    """
    return _plain(model, _merged_layer) if has_adapter(model) else model


def _merged_layer(layer: Any) -> nn.Module:
    base = layer.get_base_layer()
    weight = nn.Parameter(effective_weight(layer).detach(), requires_grad=False)
    return copy.deepcopy(base, {id(base.weight): weight})


def _plain(model: nn.Module, replacement: Callable[[Any], nn.Module]) -> nn.Module:
    """A copy of the module tree around the very same tensors, adapted layers replaced."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    memo |= {id(layer): replacement(layer) for layer in _layers(model)}
    plain = copy.deepcopy(model, memo)
    for name in ("peft_config", "_hf_peft_config_loaded"):
        plain.__dict__.pop(name, None)
    return plain


def save_adapter(model: nn.Module, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, with a reward model's head among the tensors."""
    peft, causal = _peft(), _any(model)
    config = copy.copy(causal.peft_config[NAME])
    base = causal.name_or_path
    config.base_model_name_or_path = str(Path(base).resolve()) if base and Path(base).is_dir() else base or None
    config.inference_mode = True
    tensors = peft.get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    if hasattr(model, HEAD):
        config.modules_to_save = [HEAD]
        tensors |= {f"{HEAD}.{name}": tensor for name, tensor in causal.score.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    stored = {f"{PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})


def adapter_base(source: str | Path) -> str | None:
    """The model that an adapter folder belongs to; None when `source` is not an adapter folder."""
    folder = Path(source)
    if not (folder / CONFIG).is_file() or (folder / "config.json").is_file():
        return None
    base = _peft().PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    if not base:
        raise ArtifactError(
            f"{folder} is an adapter whose {CONFIG} names no base_model_name_or_path; write the folder or hub id of "
            "the model it was trained on there"
        )
    return str(base)


def apply_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """`model` with a stored adapter merged into it."""
    peft, config = _peft(), _peft().PeftConfig.from_pretrained(str(folder))
    if config.peft_type != peft.PeftType.LORA or not (Path(folder) / WEIGHTS).is_file():
        raise ArtifactError(f"{folder} is not a LoRA adapter in safetensors: expected {WEIGHTS} and peft_type LORA")
    config.modules_to_save = None
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(Path(folder) / WEIGHTS).items()}
    head = {name: tensors.pop(name) for name in list(tensors) if name.startswith(f"{HEAD}.")}
    try:
        with torch.random.fork_rng(devices=[]):
            _any(model).add_adapter(config, NAME)
        found = peft.set_peft_model_state_dict(model, tensors, adapter_name=NAME)
        if head:
            model.load_state_dict(head, strict=False)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{folder} does not fit its base {_any(model).name_or_path}: {error}") from error
    lacking = [name for name in found.missing_keys if "lora_" in name]
    unknown = [*found.unexpected_keys, *(name for name in head if not hasattr(model, HEAD))]
    if lacking or unknown:
        what = f"{len(lacking)} tensors missing, {len(unknown)} unknown, such as {[*lacking, *unknown][0]}"
        raise ArtifactError(f"{folder} does not fit its base {_any(model).name_or_path}: {what}")
    return merged(model)


def _targets(model: nn.Module, wanted: Sequence[str] | None) -> tuple[list[str], bool]:
    """Names of the layers to adapt as peft matches them (a name's end), and whether their weights are (in, out).

    Layers are the linear ones of the blocks. The output head and the embeddings are outside: log-probabilities read
    their weights directly.
    """
    kinds = {
        f"{stack}.{name}": isinstance(layer, Conv1D)
        for stack, blocks in model.named_modules()
        if isinstance(blocks, nn.ModuleList)
        for name, layer in blocks.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D))
    }
    known = sorted({name.rpartition(".")[2] for name in kinds})
    targets = known if wanted is None else list(wanted)
    every = [name for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, Conv1D, nn.Embedding))]
    for target in targets:
        matched = [name for name in every if f".{name}".endswith(f".{target}")]
        outside = [name for name in matched if name not in kinds]
        if not matched or outside:
            what = f"{', '.join(outside)}, which is outside the blocks" if outside else "no layer of this model"
            raise ConfigError(f"model.lora.targets: {target} names {what}; choose from {', '.join(known)}")
    return targets, any(kinds[name] for name in kinds if any(f".{name}".endswith(f".{t}") for t in targets))


def _is_adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "lora_A")


def _layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if _is_adapted(module)]


def _any(module: nn.Module) -> Any:
    return module


def _peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["peft"]) from error
    return peft
