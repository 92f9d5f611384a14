"""LoRA (arXiv:2106.09685): the weight W of a linear layer is frozen, and a product of two thin matrices is trained.

y = x·(W + s·B·A)ᵀ with A of shape (rank, in), B of shape (out, rank), and s = alpha/rank, or alpha/√rank
(arXiv:2312.03732). B is initialised to zero, so a policy starts as its base.

The adapter is part of the model, whose class, config, backbone and head are those of the base. Three functions return
ordinary Hugging Face models again: `without_adapter`, the base with shared tensors; `merged`, with W + s·B·A as weight;
and `save_adapter`, whose files any program with peft can load.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.core.errors import ArtifactError, ConfigError, import_optional
from rlhf_lab.core.files import write_json
from rlhf_lab.models.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    Record,
    adapter_dir,
    base_identity,
    reading_weights,
    refuse_circle,
)
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.weights import (
    EARLIER,
    HEAD,
    add_parallel,
    add_product,
    has_packed_weight,
    numbers_of,
    products,
    stored_as,
    unpacked,
    weight_of,
)

PREFIX = "base_model.model."  # prefix of all tensor names in an adapter file, by peft's convention
NAME = "default"  # name of a model's only adapter; peft allows several
Products = Mapping[str, tuple[Tensor, Tensor]]
"""Adapter products (A, s·B) by the name of their layer, A (rank, in), s·B (out, rank)."""
RECORD = "_rlhf_lab_adapter_on"
"""Key in a model's `__dict__` (see `sharded.ROOT`) for the base that its adapter is trained on, a `Record`."""
BASE_LAYER = "base_layer"  # peft's name of the layer that it wraps with an adapter


def trainable(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """Return `model` ready to train: all parameters at rank 0, else an adapter and a reward model's head.

    A depends only on the seed; the global random state is neither used nor changed.
    """
    return add_adapter(model, settings, seed) if settings.rank else model


def add_adapter(model: nn.Module, settings: LoRA, seed: int) -> nn.Module:
    """Add an adapter to `model` in place, and freeze everything else except a reward model's head."""
    peft = import_optional("peft")
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
        # sampled on the CPU with peft's distribution, so that A is the same on every device
        initial = nn.init.kaiming_uniform_(torch.empty(a_weight.shape), a=math.sqrt(5), generator=generator)
        a_weight.data.copy_(initial)
    if hasattr(model, HEAD):
        _untyped(model).score.requires_grad_(True)
    model.__dict__[RECORD] = Record(identity_of(model), stored_as(model))
    return model.train(model.training)  # the adapter's new modules take the mode of the model


def _attach(model: nn.Module, config: Any) -> None:
    """Wrap the layers that `config` names in peft's layers, with a float32 adapter whose values are set later."""
    with torch.random.fork_rng(devices=[]):  # peft samples its own A, which is overwritten
        _untyped(model).add_adapter(config, NAME)
    for layer in _adapted_layers(model):  # peft gives an adapter the dtype of its base
        layer.lora_A.float()
        layer.lora_B.float()


def identity_of(model: nn.Module) -> str:
    """Return `model_files.base_identity` of the directory or hub model from which a model was loaded."""
    loaded = _untyped(model)
    return base_identity(loaded.name_or_path, getattr(loaded.config, "_commit_hash", None))


def has_adapter(model: nn.Module) -> bool:
    return bool(_adapted_layers(model))


def is_of_adapter(name: str) -> bool:
    """Return True if a parameter of this name belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def effective_weight(layer: nn.Module) -> Tensor:
    """Return the weight that a linear layer computes with, in its own layout: W, or W + s·B·A with an adapter.

    `layer.weight` of a layer with an adapter is only W.
    """
    if not _is_adapted(layer):
        return weight_of(layer)
    weight = weight_of(base_layer(layer))
    return weight + _untyped(layer).get_delta_weight(NAME).to(weight.dtype)


def base_layer(layer: nn.Module) -> nn.Module:
    """Return a linear layer without its adapter."""
    return _untyped(layer).get_base_layer() if _is_adapted(layer) else layer


def without_adapter(model: nn.Module) -> nn.Module:
    """Return the base of a model with an adapter, frozen. It shares every tensor and needs no extra memory.

    It is the reference of DPO and of a KL penalty. After LoRA-SFT it is the SFT policy, which was saved merged.
    """
    return _with_layers(model, {layer: base_layer(layer) for layer in _adapted_layers(model)}).requires_grad_(False)


def twin(model: nn.Module) -> nn.Module:
    """Return another module tree around the same tensors; an adapter in one tree does not affect the other."""
    return _with_layers(model, {})


def merged(model: nn.Module) -> nn.Module:
    """Return a model without adapters that computes the same up to rounding; only adapted weights are new tensors.

    4-bit weights are dequantised in it. A model with neither adapters nor 4-bit weights is returned as it is.
    """
    adapted = _adapted_layers(model)
    bases = {base_layer(layer) for layer in adapted}
    candidates = (layer for layer in model.modules() if layer not in bases)
    others = [layer for layer in candidates if has_packed_weight(layer) or products(layer)]
    if not adapted and not others:
        return model
    # only layers that change are replaced; everything else is shared with `model`
    return _with_layers(model, {layer: _merged_layer(layer) for layer in (*adapted, *others)})


def products_of(model: nn.Module) -> Products:
    """Return the products of a model's adapters: the trained one and, on 4-bit layers, those of earlier stages."""
    factors = {}
    for name, layer in model.named_modules():
        if name.endswith(f".{BASE_LAYER}"):  # handled with the layer that wraps it
            continue
        pairs = products(base_layer(layer))
        if _is_adapted(layer):
            adapted = _untyped(layer)
            a = adapted.lora_A[NAME].weight.detach()
            b = adapted.lora_B[NAME].weight.detach()
            pairs.append((a, adapted.scaling[NAME] * b))
        if pairs:
            # several adapters on one layer equal one adapter with their factors concatenated along the rank
            factors[name] = (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], dim=1))
    return factors


def without_products(model: nn.Module) -> nn.Module:
    """Return the model to which the adapters of `products_of` are added.

    4-bit weights are dequantised into host memory, because on a GPU they would be the largest tensors.
    """
    layers = {}
    for name, layer in model.named_modules():
        base = base_layer(layer)
        is_packed = has_packed_weight(base)
        # the base of an adapted layer is replaced together with that layer
        if name.endswith(f".{BASE_LAYER}") or not (_is_adapted(layer) or is_packed):
            continue
        layers[layer] = unpacked(base, numbers_of(base).cpu()) if is_packed else base
    return _with_layers(model, layers) if layers else model


def save_products(products: Products, directory: Path) -> None:
    """Write the result of `products_of` as an adapter file in peft's format, with scale 1 (`lora_alpha` = rank)."""
    rank = rank_of(products)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in products}),
        "bias": "none",
    }
    write_json(directory / ADAPTER, config)
    tensors = {}
    for name, (a, b) in products.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a.cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b.cpu().contiguous()
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def rank_of(products: Products) -> int:
    """Return the maximum rank of the products; 0 if there are none."""
    return max((len(a) for a, _ in products.values()), default=0)


def _merged_layer(layer: Any) -> nn.Module:
    """Return an ordinary linear layer that computes what the adapted layer does."""
    base = base_layer(layer)
    if has_packed_weight(base):
        return unpacked(base, effective_weight(layer).detach())
    weight = nn.Parameter(effective_weight(layer).detach(), requires_grad=False)
    unwrapped = copy.deepcopy(base, {id(base.weight): weight})
    unwrapped.__dict__.pop(EARLIER, None)
    return unwrapped


def _with_layers(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Return a copy of the module tree around the same tensors, with some layers replaced."""
    # deepcopy uses the objects in its memo instead of copying: tensors are shared, and layers are replaced.
    shared: list[Any] = [*model.parameters(), *model.buffers()]
    for layer in model.modules():
        shared += [factor for pair in products(layer) for factor in pair]
        shared += [layer.quant_state] if hasattr(layer, "quant_state") else []  # the scales of 4-bit weights
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    memo |= {id(layer): replacement for layer, replacement in replacements.items()}
    unwrapped_model = copy.deepcopy(model, memo)
    # with these attributes, transformers would treat the copy as a model with an adapter
    for name in ("peft_config", "_hf_peft_config_loaded"):
        unwrapped_model.__dict__.pop(name, None)
    return unwrapped_model


def save_adapter(model: nn.Module, directory: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, including a reward model's head."""
    peft = import_optional("peft")
    config = copy.copy(_untyped(model).peft_config[NAME])
    base = _untyped(model).name_or_path
    if base and Path(base).is_dir():
        base = str(Path(base).resolve())  # absolute, so that it is found from any working directory
    config.base_model_name_or_path = base or None
    config.inference_mode = True
    tensors = peft.get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    if hasattr(model, HEAD):
        config.modules_to_save = [HEAD]
        tensors |= {f"{HEAD}.{name}": tensor for name, tensor in _untyped(model).score.state_dict().items()}
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(directory))
    stored = {f"{PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.__dict__[RECORD].write(directory)


def adapter_base(source: str | Path) -> str | None:
    """Return the base of an adapter directory; None if `source` is not an adapter directory."""
    directory = Path(source)
    is_full_model = (directory / "config.json").is_file()
    if is_full_model or not (directory / ADAPTER).is_file():
        return None
    base = import_optional("peft").PeftConfig.from_pretrained(str(directory)).base_model_name_or_path
    if not base:
        raise ArtifactError(
            f"{directory} is an adapter whose {ADAPTER} has no base_model_name_or_path; set it to the directory or hub "
            "id of the model that the adapter was trained on"
        )
    return str(base)


def adapter_chain(source: str | Path) -> tuple[str, list[Path]]:
    """Return (lowest base, adapters on it, oldest first) of a directory that stages with adapters have created.

    Raises ArtifactError if a base in between is missing.
    """
    adapters: list[Path] = []
    here = str(source)
    passed = [here]
    while True:
        adapter = adapter_dir(here)
        base = adapter_base(adapter)
        if base is None:
            return here, adapters[::-1]
        if Path(base).is_absolute() and not Path(base).is_dir():
            raise ArtifactError(
                f"{adapter} is an adapter on {base}, which does not exist, and model.weights=nf4 packs that model and "
                "adds the adapter to it; restore it, or set model.weights=bfloat16, which uses the merged model"
            )
        refuse_circle(passed, base)  # a directory that names itself as its base would never end
        adapters.append(adapter)
        passed.append(base)
        here = base


def add_products(model: nn.Module, directory: Path, *, shared: bool = False) -> None:
    """Add a stored adapter, and its head if it has one, to a frozen model.

    The product is added to the weights, except for 4-bit weights, where it is kept separately.

    Args:
        shared: True if other models share the weights; all products are then kept separately.
    """
    add = add_parallel if shared else add_product
    config, tensors, head_tensors = _read_adapter(directory)
    others = [name for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight"))]
    if others:
        raise ArtifactError(
            f"{directory}: its adapter has {len(others)} tensors that are no products, such as {others[0]}, and "
            "they cannot be added to 4-bit weights; set model.weights=bfloat16, or merge the adapter once (peft's "
            "merge_and_unload and save_pretrained)"
        )
    with reading_weights(directory):
        if hasattr(model, HEAD):
            model.load_state_dict(head_tensors, strict=False)
        for name, a in tensors.items():
            layer_name, is_a, _ = name.partition(".lora_A.weight")
            if is_a:
                b = tensors[f"{layer_name}.lora_B.weight"]
                try:
                    layer = model.get_submodule(layer_name)
                except AttributeError as error:
                    raise KeyError(f"the model has no layer {layer_name}") from error
                add(layer, a.float(), _scale(config, layer_name, len(a)) * b.float())


def _scale(config: Any, layer_name: str, rank: int) -> float:
    """Return the scale s of a layer's product. In adapters of other programs it may differ between layers."""
    key = import_optional("peft").utils.other.get_pattern_key(config.alpha_pattern, layer_name)
    alpha: float = config.alpha_pattern.get(key, config.lora_alpha)
    # rank-stabilised LoRA (arXiv:2312.03732) divides by √rank
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def apply_adapter(model: nn.Module, directory: str | Path) -> nn.Module:
    """Return `model` with a stored adapter merged into its weights; all its parameters can be trained, as before."""
    config, tensors, head_tensors = _read_adapter(directory)
    config.modules_to_save = None  # the head is loaded into the model's own below, not into peft's copy
    misfit = f"{directory} does not fit its base {_untyped(model).name_or_path}"
    if config.layer_replication:
        raise ArtifactError(
            f"{directory}: its adapter repeats layers of the base (layer_replication), which is not supported; merge "
            "it once (peft's merge_and_unload and save_pretrained)"
        )
    _untie(model, tensors)
    try:
        _attach(model, config)
        load_result = import_optional("peft").set_peft_model_state_dict(model, tensors, adapter_name=NAME)
        if head_tensors:
            model.load_state_dict(head_tensors, strict=False)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{misfit}: {error}") from error
    missing = [name for name in load_result.missing_keys if "lora_" in name]  # the base's tensors are already loaded
    unexpected = list(load_result.unexpected_keys)
    if not hasattr(model, HEAD):
        unexpected += head_tensors
    if missing or unexpected:
        example = [*missing, *unexpected][0]
        raise ArtifactError(f"{misfit}: {len(missing)} tensors missing, {len(unexpected)} unknown, such as {example}")
    try:
        for layer in _adapted_layers(model):
            layer.merge(adapter_names=[NAME])  # peft's own, because other programs store variants such as DoRA
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{directory} cannot be merged into its base: {error}") from error
    return without_adapter(model).requires_grad_(True)  # peft has frozen the base


def _untie(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a tied output head a weight of its own if an adapter changes the head or the embeddings, as in peft."""
    causal = _untyped(model)
    head, embeddings = causal.get_output_embeddings(), causal.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return
    prefixes = tuple(f"{name}." for name, module in model.named_modules() if module in (head, embeddings))
    # peft itself applies new values of single tokens to both
    changed = [name for name in tensors if name.startswith(prefixes) and "token_adapter" not in name]
    if changed:
        head.weight = nn.Parameter(head.weight.detach().clone())
        causal.config.tie_word_embeddings = False


def _read_adapter(directory: str | Path) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """Return peft's config of a stored adapter, its tensors by their names in the model, and those of a scalar head."""
    peft = import_optional("peft")
    config = peft.PeftConfig.from_pretrained(str(directory))
    weights_file = Path(directory) / ADAPTER_WEIGHTS
    if config.peft_type != peft.PeftType.LORA or not weights_file.is_file():
        raise ArtifactError(
            f"{directory} is not a LoRA adapter in safetensors: expected {ADAPTER_WEIGHTS} and peft_type LORA"
        )
    with reading_weights(weights_file):
        stored = load_file(weights_file)
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}
    head_names = [name for name in tensors if name.startswith(f"{HEAD}.")]
    return config, tensors, {name: tensors.pop(name) for name in head_names}


def _target_layers(model: nn.Module, requested: Sequence[str] | None) -> tuple[list[str], bool]:
    """Return the names of layers to adapt, matched at their end as in peft, and True if their weights are (in, out).

    All linear layers of the blocks can be adapted. The output head and the embeddings are not included, because
    log-probabilities read their weights directly.
    """
    decoder = text_decoder(model)
    text_modules = None if decoder is None else {*decoder.modules()}
    # GPT-2's linear layers are Conv1D, whose weights are (in, out)
    is_conv1d = {}
    for stack_name, stack in model.named_modules():
        if not isinstance(stack, nn.ModuleList) or (text_modules is not None and stack not in text_modules):
            continue
        for name, layer in stack.named_modules():
            if isinstance(layer, (nn.Linear, Conv1D)):
                is_conv1d[f"{stack_name}.{name}"] = isinstance(layer, Conv1D)
    choices = sorted({name.rpartition(".")[2] for name in is_conv1d})
    targets = choices if requested is None else list(requested)
    # peft would match these anywhere in the model, including the embeddings
    matchable = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D, nn.Embedding)) and (text_modules is None or layer in text_modules)
    ]

    def matches(name: str, target: str) -> bool:
        return f".{name}".endswith(f".{target}")

    for target in targets:
        matched = [name for name in matchable if matches(name, target)]
        outside = [name for name in matched if name not in is_conv1d]
        if not matched or outside:
            problem = f"{', '.join(outside)}, which is outside the blocks" if outside else "no layer of this model"
            raise ConfigError(f"model.lora.targets: {target} matches {problem}; choose from {', '.join(choices)}")
    adapted = [name for name in is_conv1d if any(matches(name, target) for target in targets)]
    if text_modules is not None:  # the image encoder has layers of the same names
        targets = adapted
    return targets, any(is_conv1d[name] for name in adapted)


def text_decoder(model: nn.Module) -> nn.Module | None:
    """Return the part of a model that reads text; None if the model has no other parts, such as an image encoder.

    Models of speech such as Parler-TTS also give None. They have no `text_config`, and `get_text_config` fails for
    them, because both their text encoder and their decoder would fit.
    """
    if getattr(_untyped(model).config, "text_config", None) is None:
        return None
    decoder: nn.Module = _untyped(model).get_decoder()
    return decoder


def _is_adapted(layer: nn.Module) -> bool:
    return hasattr(layer, "lora_A")


def _adapted_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if _is_adapted(module)]


def _untyped(module: nn.Module) -> Any:
    """Return the module itself as Any, for methods that transformers and peft add to it."""
    return module
