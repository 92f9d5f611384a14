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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.core.errors import OPTIONAL, ArtifactError, ConfigError, MissingDependency
from rlhf_lab.core.files import write_json
from rlhf_lab.models.model_files import Record, adapter_folder, base_identity, refuse_circle
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.weights import (
    EARLIER,
    add_beside,
    add_product,
    has_packed_weight,
    numbers_of,
    products,
    stored_as,
    unpacked,
    weight_of,
)

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every tensor name in an adapter file, by peft's convention
NAME = "default"  # of the one adapter a model has; peft allows several
Products = Mapping[str, tuple[Tensor, Tensor]]
"""What adapters add to layers: (A, s·B) by a layer's name, A of (rank, in), s·B of (out, rank)."""
RECORD = "_rlhf_lab_adapter_on"
"""Key in a model's `__dict__`, see `divided.ROOT`: what its adapter is trained on, a `Record`."""
BASE_LAYER = "base_layer"  # peft's name of the layer that it puts an adapter around
HEAD = "score"  # of a reward model: new, hence trained whole and stored with the adapter


def trainable(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """`model` ready to train: all of it at rank 0, else an adapter on a frozen base, and a reward model's head.

    The seed alone decides A; global random state is neither read nor moved.
    """
    return add_adapter(model, settings, seed) if settings.rank else model


def add_adapter(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """Put an adapter into `model`, in place, and freeze the rest but a reward model's head."""
    peft = _import_peft()
    targets, transposed = _target_layers(model, settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        use_rslora=settings.rslora,
        target_modules=targets,
        fan_in_fan_out=transposed,
        task_type="SEQ_CLS" if hasattr(model, HEAD) else "CAUSAL_LM",
    )
    _attach(model, config)
    generator = torch.Generator().manual_seed(seed)
    for layer in _adapted_layers(model):
        a_weight = layer.lora_A[NAME].weight
        # Drawn on the CPU with peft's distribution, so that A is the same on every device.
        initial = nn.init.kaiming_uniform_(torch.empty(a_weight.shape), a=math.sqrt(5), generator=generator)
        a_weight.data.copy_(initial)
    if hasattr(model, HEAD):
        _untyped(model).score.requires_grad_(True)
    model.__dict__[RECORD] = Record(identity_of(model), stored_as(model))
    return model.train(model.training)  # the adapter's new modules take the mode of the model


def _attach(model: nn.Module, config: Any) -> None:
    """Put peft's layers around those that `config` names, with an adapter in float32 whose values are not drawn yet."""
    with torch.random.fork_rng(devices=[]):  # peft draws an A of its own, which is overwritten
        _untyped(model).add_adapter(config, NAME)
    for layer in _adapted_layers(model):  # peft gives an adapter the dtype of its base
        layer.lora_A.float()
        layer.lora_B.float()


def identity_of(model: nn.Module) -> str:
    """What `model_files.base_identity` says of the folder or hub model that a model was loaded from."""
    loaded = _untyped(model)
    return base_identity(loaded.name_or_path, getattr(loaded.config, "_commit_hash", None))


def has_adapter(model: nn.Module) -> bool:
    return bool(_adapted_layers(model))


def is_of_adapter(name: str) -> bool:
    """Whether a parameter of this name is an adapter's."""
    return ".lora_A." in name or ".lora_B." in name


def effective_weight(layer: nn.Module) -> Tensor:
    """The weight a linear layer computes with, in the layout of its own: W, or W + s·B·A where there is an adapter.

    `layer.weight` of an adapted layer is W alone.
    """
    if not _is_adapted(layer):
        return weight_of(layer)
    weight = weight_of(base_layer(layer))
    delta = _untyped(layer).get_delta_weight(NAME)
    return weight + delta.to(weight.dtype)


def base_layer(layer: nn.Module) -> nn.Module:
    """A linear layer without its adapter."""
    return _untyped(layer).get_base_layer() if _is_adapted(layer) else layer


def without_adapter(model: nn.Module) -> nn.Module:
    """The base of a model with an adapter as a model of its own, frozen; it shares every tensor and costs no memory.

    The reference of DPO and of a KL penalty. After LoRA-SFT it is the SFT policy, since that was saved merged.
    """
    bases = {layer: base_layer(layer) for layer in _adapted_layers(model)}
    return _with_layers(model, bases).requires_grad_(False)


def twin(model: nn.Module) -> nn.Module:
    """Another module tree around the very same tensors, so that an adapter in one is none in the other."""
    return _with_layers(model, {})


def merged(model: nn.Module) -> nn.Module:
    """A plain model that computes the same (to rounding): adapted weights are new, all else is shared.

    Weights of four bits are numbers in it. A model that has neither is returned as it is.
    """
    adapted = _adapted_layers(model)
    bases = {base_layer(layer) for layer in adapted}
    others = [
        layer for layer in model.modules() if layer not in bases and (has_packed_weight(layer) or products(layer))
    ]
    if not adapted and not others:
        return model
    return _with_layers(model, {layer: _merged_layer(layer) for layer in (*adapted, *others)})


def products_of(model: nn.Module) -> Products:
    """What adapters add to the layers of a model: the one that is trained, and beside it, on layers of four bits, those
    of earlier stages.
    """
    factors = {}
    for name, layer in model.named_modules():
        if name.endswith(f".{BASE_LAYER}"):  # seen as its adapter's layer
            continue
        pairs = products(base_layer(layer))
        if _is_adapted(layer):
            adapted = _untyped(layer)
            a, b = adapted.lora_A[NAME].weight.detach(), adapted.lora_B[NAME].weight.detach()
            pairs.append((a, adapted.scaling[NAME] * b))
        if pairs:
            factors[name] = (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], dim=1))
    return factors


def without_products(model: nn.Module) -> nn.Module:
    """The plain model that the adapters of `products_of` lie on.

    Weights of four bits are numbers in it, and in host memory: on a GPU they would be the largest thing there.
    """
    layers = {}
    for name, layer in model.named_modules():
        base = base_layer(layer)
        if name.endswith(f".{BASE_LAYER}") or not (_is_adapted(layer) or has_packed_weight(base)):
            continue
        layers[layer] = unpacked(base, numbers_of(base).cpu()) if has_packed_weight(base) else base
    return _with_layers(model, layers) if layers else model


def save_products(products: Products, folder: Path) -> None:
    """Write what `products_of` gives as an adapter file in peft's format, whose scale is 1."""
    rank = rank_of(products)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in products}),
        "bias": "none",
    }
    write_json(folder / CONFIG, config)
    tensors = {}
    for name, (a, b) in products.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a.cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b.cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def rank_of(products: Products) -> int:
    """The largest rank among products; 0 where there are none."""
    return max((len(a) for a, _ in products.values()), default=0)


def _merged_layer(layer: Any) -> nn.Module:
    """A plain linear layer that computes what the adapted one does."""
    base = base_layer(layer)
    if has_packed_weight(base):
        return unpacked(base, effective_weight(layer).detach())
    weight = nn.Parameter(effective_weight(layer).detach(), requires_grad=False)
    plain = copy.deepcopy(base, {id(base.weight): weight})
    plain.__dict__.pop(EARLIER, None)
    return plain


def _with_layers(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """A copy of the module tree around the very same tensors, with other layers in place of some."""
    # deepcopy takes what its memo holds instead of copying it: tensors are shared, adapted layers exchanged.
    shared: list[Any] = [*model.parameters(), *model.buffers()]
    for layer in model.modules():
        shared += [factor for pair in products(layer) for factor in pair]
        shared += [layer.quant_state] if hasattr(layer, "quant_state") else []  # the scales of four bits
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    memo |= {id(layer): replacement for layer, replacement in replacements.items()}
    plain_model = copy.deepcopy(model, memo)
    # With these attributes left on it, transformers would take the copy for a model with an adapter.
    for name in ("peft_config", "_hf_peft_config_loaded"):
        plain_model.__dict__.pop(name, None)
    return plain_model


def save_adapter(model: nn.Module, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, with a reward model's head among the tensors."""
    peft = _import_peft()
    config = copy.copy(_untyped(model).peft_config[NAME])
    base = _untyped(model).name_or_path
    if base and Path(base).is_dir():
        base = str(Path(base).resolve())  # found again from any working directory
    config.base_model_name_or_path = base or None
    config.inference_mode = True
    tensors = peft.get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    if hasattr(model, HEAD):
        config.modules_to_save = [HEAD]
        head_tensors = _untyped(model).score.state_dict()
        tensors |= {f"{HEAD}.{name}": tensor for name, tensor in head_tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    stored = {f"{PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    model.__dict__[RECORD].write(folder)


def adapter_base(source: str | Path) -> str | None:
    """The model that an adapter folder belongs to; None when `source` is not an adapter folder."""
    folder = Path(source)
    is_whole_model = (folder / "config.json").is_file()
    if is_whole_model or not (folder / CONFIG).is_file():
        return None
    base = _import_peft().PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    if not base:
        raise ArtifactError(
            f"{folder} is an adapter whose {CONFIG} names no base_model_name_or_path; write the folder or hub id of "
            "the model it was trained on there"
        )
    return str(base)


def adapter_chain(source: str | Path) -> tuple[str, list[Path]]:
    """(the model at the bottom, the adapters on it, oldest first) of a folder that was made by stages with adapters.

    Raises ArtifactError where a model on the way is gone.
    """
    adapters: list[Path] = []
    here = str(source)
    passed = [here]
    while True:
        adapter = adapter_folder(here)
        base = adapter_base(adapter)
        if base is None:
            return here, adapters[::-1]
        if Path(base).is_absolute() and not Path(base).is_dir():
            raise ArtifactError(
                f"{adapter} lies on {base}, which is not there, and model.weights=nf4 packs that model and adds the "
                "adapter to it; put it back, or use model.weights=bfloat16, which takes the merged model"
            )
        refuse_circle(passed, base)
        adapters.append(adapter)
        passed.append(base)
        here = base


def add_products(model: nn.Module, folder: Path, *, shared: bool = False) -> None:
    """Add a stored adapter, and its head if it has one, to a frozen model: beside weights of four bits, into others.

    Args:
        shared: other models have the same weights, so that it is added beside all of them.
    """
    add = add_beside if shared else add_product
    config, tensors, head_tensors = _read_adapter(folder)
    if hasattr(model, HEAD):
        model.load_state_dict(head_tensors, strict=False)
    scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    for name, a in tensors.items():
        layer_name, is_a, _ = name.partition(".lora_A.weight")
        if is_a:
            b = tensors[f"{layer_name}.lora_B.weight"]
            add(model.get_submodule(layer_name), a.float(), scale * b.float())


def apply_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """`model` with a stored adapter merged into it."""
    config, tensors, head_tensors = _read_adapter(folder)
    config.modules_to_save = None  # the head is loaded into the model's own below, not into a peft copy of it
    misfit = f"{folder} does not fit its base {_untyped(model).name_or_path}"
    try:
        _attach(model, config)
        load_result = _import_peft().set_peft_model_state_dict(model, tensors, adapter_name=NAME)
        if head_tensors:
            model.load_state_dict(head_tensors, strict=False)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{misfit}: {error}") from error
    missing = [name for name in load_result.missing_keys if "lora_" in name]  # the base's own tensors are there already
    unexpected = list(load_result.unexpected_keys)
    if not hasattr(model, HEAD):
        unexpected += head_tensors
    if missing or unexpected:
        example = [*missing, *unexpected][0]
        raise ArtifactError(f"{misfit}: {len(missing)} tensors missing, {len(unexpected)} unknown, such as {example}")
    return merged(model)


def _read_adapter(folder: str | Path) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """peft's config of a stored adapter, its tensors by their names in the model, and those of a scalar head."""
    peft = _import_peft()
    config = peft.PeftConfig.from_pretrained(str(folder))
    weights_file = Path(folder) / WEIGHTS
    if config.peft_type != peft.PeftType.LORA or not weights_file.is_file():
        raise ArtifactError(f"{folder} is not a LoRA adapter in safetensors: expected {WEIGHTS} and peft_type LORA")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(weights_file).items()}
    head_names = [name for name in tensors if name.startswith(f"{HEAD}.")]
    return config, tensors, {name: tensors.pop(name) for name in head_names}


def _target_layers(model: nn.Module, requested: Sequence[str] | None) -> tuple[list[str], bool]:
    """Names of the layers to adapt as peft matches them (a name's end), and whether their weights are (in, out).

    Layers are the linear ones of the blocks. The output head and the embeddings are outside: log-probabilities read
    their weights directly.
    """
    is_conv1d = {  # GPT-2's linear layers are Conv1D, whose weights are (in, out)
        f"{stack_name}.{name}": isinstance(layer, Conv1D)
        for stack_name, stack in model.named_modules()
        if isinstance(stack, nn.ModuleList)
        for name, layer in stack.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D))
    }
    choices = sorted({name.rpartition(".")[2] for name in is_conv1d})
    targets = choices if requested is None else list(requested)
    # peft would match these anywhere in the model, embeddings included.
    matchable = [name for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, Conv1D, nn.Embedding))]

    def matches(name: str, target: str) -> bool:
        return f".{name}".endswith(f".{target}")

    for target in targets:
        matched = [name for name in matchable if matches(name, target)]
        outside = [name for name in matched if name not in is_conv1d]
        if not matched or outside:
            problem = f"{', '.join(outside)}, which is outside the blocks" if outside else "no layer of this model"
            raise ConfigError(f"model.lora.targets: {target} names {problem}; choose from {', '.join(choices)}")
    adapted = [name for name in is_conv1d if any(matches(name, target) for target in targets)]
    return targets, any(is_conv1d[name] for name in adapted)


def _is_adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "lora_A")


def _adapted_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if _is_adapted(module)]


def _untyped(module: nn.Module) -> Any:
    """The module itself, for methods that transformers and peft add and nn.Module's type does not know."""
    return module


def _import_peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["peft"]) from error
    return peft
